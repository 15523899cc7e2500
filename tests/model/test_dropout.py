"""Dropout: masks are functions of a key and of the layer's number."""

import numpy as np
import tensorflow as tf

from chatbot.model.dropout import Dropout


def test_dropout_is_a_function_of_its_key_and_number() -> None:
    ones = tf.ones([100, 100])
    key = tf.constant([1], tf.uint64)
    outputs = Dropout(0.8, 3)(ones, key).numpy()
    np.testing.assert_array_equal(outputs, Dropout(0.8, 3)(ones, key).numpy())
    assert np.any(outputs != Dropout(0.8, 4)(ones, key).numpy())
    assert np.any(outputs != Dropout(0.8, 3)(ones, tf.constant([2], tf.uint64)).numpy())
    assert set(np.unique(outputs)) == {0.0, np.float32(1.25)}
    assert abs((outputs > 0).mean() - 0.8) < 0.02
    np.testing.assert_array_equal(Dropout(0.8, 3)(ones, None), ones)
