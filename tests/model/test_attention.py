"""Both kinds of attention against slow float64 twins."""

import numpy as np
import pytest
import tensorflow as tf

from chatbot.model.attention import BahdanauAttention, LuongAttention

ROWS, TARGET, SOURCE, UNITS = 3, 4, 5, 6


def softmax(scores: np.ndarray) -> np.ndarray:
    """scores: [source]."""
    exp = np.exp(scores - scores.max())
    return exp / exp.sum()


@pytest.fixture
def inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, memory and a mask with different lengths. The memory is large at padding."""
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(ROWS, TARGET, UNITS)).astype(np.float32)
    memory = rng.normal(size=(ROWS, SOURCE, UNITS)).astype(np.float32)
    mask = np.arange(SOURCE) < np.array([[5], [3], [1]])
    memory[~mask] = 1e6  # so that even a tiny weight at padding changes the context
    return queries, memory, mask


@pytest.mark.parametrize("kind", [LuongAttention, BahdanauAttention])
def test_context_equals_slow_twin(kind: type, inputs: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    queries, memory, mask = inputs
    layer = kind(UNITS)
    context = layer(queries, layer.keys(memory), memory, tf.constant(mask))

    def score(query: np.ndarray, vector: np.ndarray) -> float:
        key = vector.astype(np.float64) @ layer.key.kernel.numpy()
        if kind is LuongAttention:
            return query @ key
        projected = query.astype(np.float64) @ layer.query.kernel.numpy() + layer.query.bias.numpy()
        return (np.tanh(projected + key) @ layer.score.kernel.numpy())[0]

    for row, position in np.ndindex(ROWS, TARGET):
        length = mask[row].sum()
        weights = softmax(np.array([score(queries[row, position], m) for m in memory[row, :length]]))
        np.testing.assert_allclose(context[row, position], weights @ memory[row, :length], atol=1e-5)
