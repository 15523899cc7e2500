"""Both kinds of attention against slow float64 twins; Bahdanau's score in chunks."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from chatbot.model.attention import BahdanauAttention, LuongAttention, _activations, additive_scores

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


@pytest.mark.parametrize("rows_of_chunk", [0, 1, 2, 3, 7], ids="chunks of {} rows".format)
def test_chunks_have_the_scores_and_gradients_of_one_tensor(rows_of_chunk: int) -> None:
    """Seven rows, so that the last chunk is smaller. With 0, a row has more elements than a chunk may have."""
    rng = np.random.default_rng(0)
    shapes = [7, TARGET, UNITS], [7, SOURCE, UNITS], [UNITS], [7, TARGET, SOURCE]
    *inputs, upstream = (tf.constant(rng.normal(size=shape)) for shape in shapes)

    def plain(queries: tf.Tensor, keys: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matvec(tf.tanh(queries[:, :, None] + keys[:, None]), vector)

    def chunked(queries: tf.Tensor, keys: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
        chunk = rows_of_chunk * TARGET * SOURCE * UNITS
        return additive_scores(queries, keys, vector, chunk, chunk)

    def with_gradients(scores: Callable[..., tf.Tensor]) -> list[tf.Tensor]:
        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None] * len(x.shape), x.dtype) for x in inputs])
        def run(*inputs: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                result = scores(*inputs)
            return [result, *tape.gradient(result, inputs, upstream)]

        return run(*inputs)

    for actual, expected in zip(with_gradients(chunked), with_gradients(plain), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_both_passes_are_in_chunks_only_if_they_have_many_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def recorded(*inputs: tf.Tensor) -> tf.Tensor:
        result = _activations(*inputs)
        with tf.control_dependencies([tf.py_function(lambda size: sizes.append(int(size)), [tf.size(result)], [])]):
            return tf.identity(result)

    monkeypatch.setattr("chatbot.model.attention._activations", recorded)
    queries, vector = tf.ones([5, TARGET, UNITS]), tf.ones([UNITS])

    @tf.function(autograph=False)
    def gradient(largest: int) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(queries)
            result = additive_scores(queries, queries, vector, largest, 4 * TARGET * TARGET * UNITS)
        return tape.gradient(result, queries)

    elements = 5 * TARGET * TARGET * UNITS
    gradient(elements)
    assert sizes == [elements]  # kept for the backward pass
    sizes.clear()
    gradient(elements - 1)
    assert sizes == [elements * 4 // 5, elements // 5] * 2
