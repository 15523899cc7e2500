"""The loss and its gradients: in chunks, against Keras's loss of all logits."""

from typing import Any

import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from chatbot.model import loss, operations
from chatbot.model.loss import LOGITS, LossSize, max_logits_for, projection_loss
from chatbot.model.operations import matmul
from chatbot.model.seq2seq import UNGENERATED_BIAS

Values = tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]


def random_values(tokens: int, units: int, vocabulary: int, seed: int, mixes: bool = False) -> Values:
    """(attended, embeddings, bias), targets, weights; targets repeat, and part of the weights are 0.

    mixes: also the log-probability of generating each target, and of copying it, which some cannot be.
    """
    rng = np.random.default_rng(seed)
    shapes = ((tokens, units), (vocabulary, units), (vocabulary,))
    values = [rng.normal(size=shape) for shape in shapes]
    if mixes:
        copied = np.log(np.where(np.arange(tokens) % 3, 0.2, 1e-30))
        values += [-np.exp(rng.normal(size=tokens)), copied]
    targets, weights = rng.integers(0, vocabulary, tokens), rng.choice([0.0, 1.0, 0.3], tokens)
    return [tf.constant(x, tf.float32) for x in values], tf.constant(targets), tf.constant(weights, tf.float32)


def plain(
    values: list[tf.Tensor], targets: tf.Tensor, weights: tf.Tensor, smoothing: float = 0.0, silent: int = 0
) -> list[tf.Tensor]:
    """Compute the loss and gradients with Keras. silent: the number of first ids that are never generated."""
    by_keras = keras.losses.CategoricalCrossentropy(from_logits=True, reduction="none")
    with tf.GradientTape() as tape:
        tape.watch(values)
        attended, embeddings, bias, *mixture = values
        logits = tf.matmul(attended, embeddings, transpose_b=True) + bias
        evenly = tf.cast(tf.range(logits.shape[-1]) >= silent, tf.float32) / (logits.shape[-1] - silent)
        losses = by_keras((1 - smoothing) * tf.one_hot(targets, logits.shape[-1]) + smoothing * evenly, logits)
        if mixture:
            losses = -tf.reduce_logsumexp(tf.stack([mixture[0] - losses, mixture[1]]), 0)
        loss = tf.reduce_sum(weights * losses)
    return [loss, *tape.gradient(loss, values)]


def chunked(
    values: list[tf.Tensor],
    targets: tf.Tensor,
    weights: tf.Tensor,
    dtype: str,
    logits: int,
    smoothing: float = 0.0,
    silent: int = 0,
    on_gpu: bool = False,
) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(values)
        attended, embeddings, bias, *mixture = values
        is_said = np.arange(bias.shape[0]) >= silent
        of_tokens = smoothing / is_said.sum() * is_said if smoothing else None
        options = dtype, LossSize(logits), tuple(mixture), of_tokens, on_gpu
        loss = projection_loss(attended, embeddings, bias, targets, weights, *options)
    return [loss, *tape.gradient(loss, values)]


@settings(max_examples=20)
@given(
    tokens=st.integers(0, 9),
    units=st.integers(1, 5),
    vocabulary=st.integers(2, 12),
    chunk=st.integers(1, 40),
    smoothing=st.sampled_from([0.0, 0.1, 0.9, None]),
    seed=st.integers(0, 99),
)
def test_chunked_loss_and_gradients_equal_plain_loss(
    tokens: int, units: int, vocabulary: int, chunk: int, smoothing: float | None, seed: int
) -> None:
    """smoothing None: with a mixture in place of label smoothing."""
    values, targets, weights = random_values(tokens, units, vocabulary, seed, mixes=smoothing is None)
    results = chunked(values, targets, weights, "float32", chunk, smoothing or 0.0)
    for actual, expected in zip(results, plain(values, targets, weights, smoothing or 0.0), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("on_gpu", "dtype", "tolerance", "deterministic"),
    [
        (True, "float32", 1e-5, False),
        (True, "float32", 1e-5, True),
        (False, "float32", 1e-5, False),
        (False, "bfloat16", 0.01, False),
        (False, "float16", 0.002, False),
    ],
)
@pytest.mark.parametrize(
    ("scale", "smoothing", "silent"),
    [(1.0, 0.0, 0), (300.0, 0.0, 0), (1.0, 0.2, 0), (1.0, 0.2, 7), (1.0, 0.0, 7), (300.0, None, 0)],
)
def test_loss_and_gradients_on_any_device_equal_plain_loss(
    on_gpu: bool, dtype: str, tolerance: float, deterministic: bool, scale: float, smoothing: float | None,
    silent: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Includes underflowing probabilities, and tokens that are never generated.

    The fused operation has no deterministic kernel on GPUs.
    """
    for module in (loss, operations):
        monkeypatch.setattr(module, "is_op_determinism_enabled", lambda: deterministic)
    values, targets, weights = random_values(40, 3, 70, seed=1, mixes=smoothing is None)
    values[0] *= tf.where(tf.range(40) % 2 == 0, scale, 1.0)[:, None]
    values[2], targets = tf.where(tf.range(70) < silent, UNGENERATED_BIAS, values[2]), tf.maximum(targets, silent)
    results = chunked(values, targets, weights, dtype, 700, smoothing or 0.0, silent, on_gpu)
    assert not any(tf.math.count_nonzero(gradient[:silent]) for gradient in results[2:4])
    for actual, expected in zip(results, plain(values, targets, weights, smoothing or 0.0, silent), strict=True):
        assert actual.dtype == tf.float32
        difference = tf.norm(actual - expected) / tf.norm(expected)
        assert difference <= tolerance
        assert dtype == "float32" or difference > 1e-6  # the products are rounded


@pytest.mark.parametrize(("most_tokens", "loops"), [(None, 1), (35, 1), (30, 0)])
def test_no_loop_if_every_call_is_one_chunk(most_tokens: int | None, loops: int) -> None:
    """A chunk has 30 tokens. On a GPU, the host would wait for the condition of a loop."""

    @tf.function(autograph=False)
    def loss(attended: tf.Tensor) -> tf.Tensor:
        _, embeddings, bias = random_values(1, 3, 10, seed=1)[0]
        targets, weights = tf.zeros(tf.shape(attended)[0], tf.int64), tf.ones(tf.shape(attended)[0])
        size = LossSize(300, most_tokens)
        return projection_loss(attended, embeddings, bias, targets, weights, "float32", size, (), None, on_gpu=False)

    graph = loss.get_concrete_function(tf.TensorSpec([None, 3])).graph
    assert sum("While" in op.type for op in graph.get_operations()) == loops


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
    assert max_logits_for(None) == LOGITS < max_logits_for(80 << 30) / 50
    assert 3 * 4 * max_logits_for(8 << 30) < (8 << 30) / 4


def test_loss_of_nan_and_inf_is_not_finite() -> None:
    values, targets, _ = random_values(4, 3, 7, seed=1)
    for bad_value in (np.inf, np.nan):
        attended = tf.tensor_scatter_nd_update(values[0], [[0, 1]], [bad_value])
        loss = chunked([attended, *values[1:]], targets, tf.ones(4), "float32", 14)[0]
        assert not np.isfinite(loss)
