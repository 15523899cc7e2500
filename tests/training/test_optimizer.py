"""The update rules against Keras's optimizers, and the mean and clipping of gradient sums against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from chatbot.training.optimizer import MOMENTUM, apply_update, average_and_clip, beta_powers, make_slots

RATE = 0.1
OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=MOMENTUM),
    "sgd": keras.optimizers.SGD,
}


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_three_updates_equal_those_of_keras(rule: str) -> None:
    start, gradients = np.array([1.0, -2.0]), np.array([[0.5, -1.0], [2.0, 0.1], [-0.3, 0.7]])
    weight, expected = tf.Variable(start, dtype=tf.float32), keras.Variable(start, dtype="float32")
    (slots,) = make_slots(rule, [weight])
    optimizer = OPTIMIZERS[rule](RATE)
    for number, gradient in enumerate(tf.constant(gradients, tf.float32), 1):
        apply_update(rule, weight, slots, gradient, tf.constant(RATE), beta_powers(tf.constant(number)))
        optimizer.apply([gradient], [expected])
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=1e-5)


@pytest.mark.parametrize("max_norm", [1.0, 100.0])
def test_mean_gradients_are_clipped_by_their_global_norm(max_norm: float) -> None:
    """The sums of two weights have norm 13; with four tokens, the mean has 3.25."""
    gradients, norm = average_and_clip([tf.constant([3.0, 4.0]), tf.constant([12.0])], tf.constant(4.0), max_norm)
    scale = min(1.0, max_norm / 3.25) / 4
    assert float(norm) == pytest.approx(3.25)
    np.testing.assert_allclose(np.concatenate(gradients), scale * np.array([3.0, 4.0, 12.0]), rtol=1e-6)


def test_no_tokens_leave_gradients_of_zero() -> None:
    gradients, norm = average_and_clip([tf.zeros(2)], tf.constant(0.0), 5.0)
    assert (float(norm), gradients[0].numpy().tolist()) == (0.0, [0.0, 0.0])
