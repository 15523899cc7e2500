"""Both kinds of attention against slow float64 twins; Bahdanau's score in chunks."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from chatbot.model.attention import BahdanauAttention, LuongAttention, _activations, additive_scores

ROWS, TARGET, SOURCE, UNITS = 3, 4, 5, 6


@pytest.mark.parametrize("kind", [LuongAttention, BahdanauAttention])
def test_context_equals_slow_twin(kind: type) -> None:
    rng = np.random.default_rng(0)
    queries, memory = (rng.normal(size=(ROWS, time, UNITS)).astype(np.float32) for time in (TARGET, SOURCE))
    mask = np.arange(SOURCE) < np.array([[5], [3], [1]])
    memory[~mask] = 1e6  # so that even a tiny weight at padding changes the context
    layer = kind(UNITS)
    context = layer(queries, layer.keys(memory), memory, tf.constant(mask))

    def score(query: np.ndarray, vector: np.ndarray) -> float:
        key = vector.astype(np.float64) @ layer.key.kernel.numpy()
        if kind is LuongAttention:
            return query @ key
        projected = query.astype(np.float64) @ layer.query.kernel.numpy() + layer.query.bias.numpy()
        return (np.tanh(projected + key) @ layer.score.kernel.numpy())[0]

    for row, position in np.ndindex(ROWS, TARGET):
        real = memory[row, mask[row]]
        weights = np.exp([score(queries[row, position], vector) for vector in real])
        np.testing.assert_allclose(context[row, position], weights / weights.sum() @ real, atol=1e-5)


@pytest.mark.parametrize(
    ("rows_of_chunk", "chunks"),
    [(0, [1] * 7), (2, [2, 2, 2, 1]), (6, [6, 1]), (7, [7])],
    ids=lambda value: f"{value} rows",
)
def test_chunks_have_the_scores_and_gradients_of_one_tensor(
    rows_of_chunk: int, chunks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both passes are chunked if there are many elements. 0: even a single row exceeds the size of a chunk."""
    rng = np.random.default_rng(0)
    shapes = [7, TARGET, UNITS], [7, SOURCE, UNITS], [UNITS], [7, TARGET, SOURCE]
    *inputs, upstream = (tf.constant(rng.normal(size=shape)) for shape in shapes)
    sizes: list[int] = []

    def recorded(*inputs: tf.Tensor) -> tf.Tensor:
        result = _activations(*inputs)
        with tf.control_dependencies([tf.py_function(lambda rows: sizes.append(int(rows)), [tf.shape(result)[0]], [])]):
            return tf.identity(result)

    monkeypatch.setattr("chatbot.model.attention._activations", recorded)

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
    assert sizes == (chunks if rows_of_chunk == 7 else chunks * 2)  # one that fits is kept for the backward pass
