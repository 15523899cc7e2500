"""The loss in chunks, and its gradients, against Keras's loss of all logits; no product is larger than a chunk."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from chatbot.model import loss
from chatbot.model.loss import LOGITS, LossSize, logits_in, projection_loss
from chatbot.model.operations import computed_on, matmul
from tests.model.plain_loss import sequence_loss

Values = tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]


def random_values(tokens: int, units: int, vocabulary: int, seed: int) -> Values:
    """(attended, embeddings, bias), targets, weights; targets repeat, and part of the weights are 0."""
    rng = np.random.default_rng(seed)
    shapes = ((tokens, units), (vocabulary, units), (vocabulary,))
    weights = rng.choice([0.0, 1.0, 0.3], tokens)
    targets = rng.integers(0, vocabulary, tokens)
    return [tf.constant(rng.normal(size=s), tf.float32) for s in shapes], tf.constant(targets), tf.constant(weights)


def plain(values: list[tf.Tensor], targets: tf.Tensor, weights: tf.Tensor, smoothing: float = 0.0) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(values)
        attended, embeddings, bias = values
        logits = tf.matmul(attended, embeddings, transpose_b=True) + bias
        loss = sequence_loss(logits, targets, tf.cast(weights, tf.float32), smoothing)
    return [loss, *tape.gradient(loss, values)]


def chunked(
    values: list[tf.Tensor],
    targets: tf.Tensor,
    weights: tf.Tensor,
    dtype: str,
    logits: int,
    smoothing: float = 0.0,
) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(values)
        attended, embeddings, bias = values
        loss = projection_loss(
            attended,
            embeddings,
            bias,
            targets,
            tf.cast(weights, tf.float32),
            dtype,
            LossSize(logits),
            label_smoothing=smoothing,
        )
    return [loss, *tape.gradient(loss, values)]


@settings(max_examples=20)
@given(
    tokens=st.integers(0, 9),
    units=st.integers(1, 5),
    vocabulary=st.integers(2, 12),
    chunk=st.integers(1, 40),
    smoothing=st.sampled_from([0.0, 0.1, 0.9]),
    seed=st.integers(0, 99),
)
def test_chunked_loss_and_gradients_equal_plain_loss(
    tokens: int, units: int, vocabulary: int, chunk: int, smoothing: float, seed: int
) -> None:
    values, targets, weights = random_values(tokens, units, vocabulary, seed)
    results = chunked(values, targets, weights, "float32", chunk, smoothing)
    for actual, expected in zip(results, plain(values, targets, weights, smoothing), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(
    ("device", "dtype", "tolerance"),
    [("/GPU:0", "float32", 1e-5), ("/CPU:0", "float32", 1e-5), ("/CPU:0", "bfloat16", 0.01)],
)
@pytest.mark.parametrize(("scale", "smoothing"), [(1.0, 0.0), (300.0, 0.0), (1.0, 0.2)])
def test_loss_and_gradients_on_any_device_equal_plain_loss(
    device: str, dtype: str, tolerance: float, scale: float, smoothing: float, deterministic: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Where probabilities underflow, too. The fused operation has no deterministic kernel on GPUs."""
    monkeypatch.setattr(loss, "is_op_determinism_enabled", lambda: deterministic)
    values, targets, weights = random_values(40, 3, 70, seed=1)
    values = [scale * value for value in values]
    with computed_on(device):
        results = chunked(values, targets, weights, dtype, 700, smoothing)
    for actual, expected in zip(results, plain(values, targets, weights, smoothing), strict=True):
        assert tf.norm(actual - expected) <= tolerance * tf.norm(expected)


@pytest.mark.parametrize(("most_tokens", "loops"), [(None, 1), (35, 1), (30, 0)])
def test_no_loop_if_every_call_is_one_chunk(most_tokens: int | None, loops: int) -> None:
    """A chunk of 30 tokens. On a GPU, the host would wait for the condition of a loop."""

    @tf.function(autograph=False)
    def loss(attended: tf.Tensor) -> tf.Tensor:
        _, embeddings, bias = random_values(1, 3, 10, seed=1)[0]
        targets, weights = tf.zeros(tf.shape(attended)[0], tf.int64), tf.ones(tf.shape(attended)[0])
        return projection_loss(attended, embeddings, bias, targets, weights, size=LossSize(300, most_tokens))

    graph = loss.get_concrete_function(tf.TensorSpec([None, 3])).graph
    assert sum("While" in op.type for op in graph.get_operations()) == loops


def test_chunk_follows_the_memory_of_the_device() -> None:
    assert logits_in(None) == LOGITS
    assert logits_in(80 << 30) > 50 * LOGITS
    assert 3 * 4 * logits_in(8 << 30) < (8 << 30) / 4


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.01), ("float16", 0.002)])
def test_rounded_products_change_loss_and_gradients_little(dtype: str, tolerance: float) -> None:
    values, targets, weights = random_values(40, 32, 200, seed=1)
    results = chunked(values, targets, weights, dtype, 2000)
    assert {x.dtype for x in results} == {tf.float32}
    for actual, expected in zip(results, plain(values, targets, weights), strict=True):
        assert 0 < tf.norm(actual - expected) < tolerance * tf.norm(expected)


def test_loss_of_nan_and_inf_is_not_finite() -> None:
    values, targets, _ = random_values(4, 3, 7, seed=1)
    for bad_value in (np.inf, np.nan):
        attended = tf.tensor_scatter_nd_update(values[0], [[0, 1]], [bad_value])
        loss = chunked([attended, *values[1:]], targets, tf.ones(4), "float32", 14)[0]
        assert not np.isfinite(loss)


def test_no_product_is_larger_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a vocabulary of 50, a chunk of 100 logits is two tokens."""
    shapes: list[tuple[int, ...]] = []

    def recorded(*arguments: Any, **options: Any) -> tf.Tensor:
        product = matmul(*arguments, **options)
        shapes.append(tuple(product.shape))
        return product

    monkeypatch.setattr(loss, "matmul", recorded)
    chunked(*random_values(65, 2, 50, seed=1), "float32", 100)
    # The last one has the logits of underflowed targets: none.
    assert {shape for shape in shapes if 50 in shape} == {(2, 50), (1, 50), (50, 2), (0, 50)}
