"""Sampling at its borders: numbers near 0 and 1, vocabularies of any size, and the least temperatures."""

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.array_functions import NumpyFunctions
from chatbot.decoding.sampling import BLOCK, sample_ids, select_ids
from chatbot.decoding.tensor_functions import TensorFunctions


@pytest.mark.parametrize("value", [1e-30, 1e-40, 1e-320])
def test_least_temperatures_leave_the_most_probable_id(value: float) -> None:
    log_probs = np.log(np.array([[0.3, 1e-30, 0.31, 0.39]], np.float32))
    decoding, uniform = DecodingSettings(temperature=value, top_p=0.9), np.array([[0.99]], np.float32)
    assert select_ids(decoding, log_probs, uniform).tolist() == [3]
    assert select_ids(decoding, tf.constant(log_probs), tf.constant(uniform)).numpy().tolist() == [3]


def test_log_softmax_of_a_row_does_not_depend_on_others() -> None:
    logits = np.array([[0, 1, -np.inf], [1e4, 1e4 + 1, -np.inf], [-1e4, 1 - 1e4, -np.inf]], np.float32)
    expected = [[-np.log(1 + np.e), 1 - np.log(1 + np.e), -np.inf]] * 3
    for log_probs in (NumpyFunctions.log_softmax(logits), TensorFunctions.log_softmax(tf.constant(logits))):
        np.testing.assert_allclose(log_probs, expected, atol=1e-6)


@pytest.mark.parametrize("vocabulary", [1, 5, BLOCK, 3 * BLOCK + 1])
@pytest.mark.parametrize("number", [0.0, 0.25, 1 - 2**-24])
def test_sampled_id_is_where_the_cumulative_distribution_reaches_the_number(vocabulary: int, number: float) -> None:
    """Also at the borders 0 and the largest float32 below 1, where ids of probability 0 are nearest."""
    generator = np.random.default_rng(vocabulary)
    log_probs = generator.normal(0, 3, (50, vocabulary)).astype(np.float32)
    log_probs[generator.random(log_probs.shape) < 0.5] = -np.inf
    log_probs[np.arange(50), generator.integers(vocabulary, size=50)] = 0
    uniform = np.full((50, 1), number, np.float32)
    of_tensors = sample_ids(tf.constant(log_probs), tf.constant(uniform)).numpy()
    for ids in (sample_ids(log_probs, uniform), of_tensors):
        assert ids.dtype == np.int64
        for row, index in zip(log_probs.astype(np.float64), ids, strict=True):
            sums = np.cumsum(np.exp(row)) / np.exp(row).sum()
            assert np.isfinite(row[index])
            assert sums[index] - np.exp(row[index]) / np.exp(row).sum() <= number + 1e-5
            assert number <= sums[index] + 1e-5
