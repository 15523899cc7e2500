"""The weighted loss against a slow float64 twin."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from chatbot.model.loss import sequence_loss


def slow_loss(logits: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> float:
    """sequence_loss, one position at a time, in float64."""
    loss = 0.0
    for index in np.ndindex(targets.shape):
        scores = logits[index].astype(np.float64)
        highest = scores.max()
        loss += weights[index] * (highest + np.log(np.exp(scores - highest).sum()) - scores[targets[index]])
    return loss


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 5), st.integers(2, 9))
def test_loss_equals_slow_twin(seed: int, rows: int, length: int, vocabulary: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 10, (rows, length, vocabulary)).astype(np.float32)
    targets = rng.integers(0, vocabulary, (rows, length)).astype(np.int32)
    weights = rng.choice([0.0, 0.5, 1.0], (rows, length)).astype(np.float32)
    loss = sequence_loss(tf.constant(logits), tf.constant(targets), tf.constant(weights))
    np.testing.assert_allclose(loss, slow_loss(logits, targets, weights), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_label_smoothing_equals_keras(smoothing: float) -> None:
    rng = np.random.default_rng(1)
    logits, targets = rng.normal(0, 3, (2, 5, 9)).astype(np.float32), rng.integers(0, 9, (2, 5))
    weights = rng.choice([0.0, 0.5, 1.0], (2, 5)).astype(np.float32)
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing, reduction="none")
    expected = np.sum(weights * keras_loss(tf.one_hot(targets, 9), logits))
    loss = sequence_loss(tf.constant(logits), tf.constant(targets), tf.constant(weights), smoothing)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_padding_does_not_change_loss() -> None:
    logits = tf.constant([[[5.0, 1.0], [float("1e30"), -1e30]]])
    loss = sequence_loss(logits, tf.constant([[0, 1]]), tf.constant([[1.0, 0.0]]))
    np.testing.assert_allclose(loss, np.log1p(np.exp(-4.0)), rtol=1e-5)
