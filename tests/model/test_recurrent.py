"""Recurrent stacks against their layers one after another; dropout masks are functions of a key and a number."""

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.recurrent import Dropout, Stack
from chatbot.model.sequences import make_sequences, pack, unpack

LENGTHS = np.array([4, 2, 3])


@pytest.mark.parametrize(("cell", "residual"), [("lstm", True), ("lstm", False), ("gru", True)])
def test_stack_equals_its_layers_one_after_another(cell: str, residual: bool) -> None:
    settings = ModelSettings(cell=cell, num_layers=3, embedding_size=5, residual=residual)
    stack, packed = Stack(settings, 6, 100), cell == "lstm"
    rng = np.random.default_rng(1)
    for weight in stack.trainable_variables:
        weight.assign(rng.normal(size=weight.shape))
    sequences = make_sequences(np.where(np.arange(4) < LENGTHS[:, None], 1, 0), packed)
    inputs = rng.normal(size=(3, 4, 5)).astype(np.float32)
    tokens = pack(tf.constant(inputs), sequences.packing) if packed else tf.constant(inputs)
    outputs, _ = stack(tokens, stack.zero_states(3, tf.float32), sequences, None)
    outputs = unpack(outputs, sequences.packing) if packed else outputs

    expected = inputs
    for number, layer in enumerate(stack.recurrent):
        of_layer = layer(expected, mask=sequences.mask)[0].numpy()
        expected = of_layer + expected if residual and number > 0 else of_layer
    np.testing.assert_allclose(outputs[sequences.mask], expected[sequences.mask], atol=1e-5)


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
