"""Our LSTM over real tokens computes what Keras's does over padded ones, and so do its gradients."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from chatbot.config.model import ModelSettings
from chatbot.model import recurrent
from chatbot.model.fast.lstm import lstm_sequence
from chatbot.model.packing import pack, packing, unpack
from chatbot.model.recurrent import recurrent_layer


def padded_lstm(
    inputs: tf.Tensor, h: tf.Tensor, c: tf.Tensor, weights: list[tf.Tensor], mask: tf.Tensor, dtype: str = "float32"
) -> list[tf.Tensor]:
    """From padded to padded, as Keras's is called."""
    where = packing(mask)
    kernel, recurrent_kernel, bias = weights
    outputs, h, c = lstm_sequence(pack(inputs, where), h, c, kernel, recurrent_kernel, bias, where, dtype)
    return [unpack(outputs, where), h, c]


@settings(max_examples=12)
@given(
    rows=st.integers(1, 5),
    time=st.integers(1, 7),
    features=st.integers(1, 6),
    units=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_it_equals_keras(rows: int, time: int, features: int, units: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = tf.constant(rng.normal(size=(rows, time, features)), tf.float32)
    start = [tf.constant(rng.normal(size=(rows, units)), tf.float32) for _ in range(2)]
    mask = tf.constant(np.arange(time) < rng.integers(1, time + 1, rows)[:, None])
    layer = recurrent_layer("lstm", features, units)
    weights = [variable.value for variable in layer.trainable_variables]
    for weight in weights:
        weight.assign(rng.normal(size=weight.shape))
    # What the rest of a model would hand back, drawn for outputs and both states; nothing looks at padding.
    real = tf.cast(mask, tf.float32)[:, :, None]
    back = [tf.constant(rng.normal(size=shape), tf.float32) for shape in ((rows, time, units), *[(rows, units)] * 2)]

    def gradients(run: object) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch((inputs, start))
            outputs, h, c = run()  # type: ignore[operator]
            found = [outputs * real, h, c]
        return found, tape.gradient(found, [inputs, *start, *weights], output_gradients=back)

    theirs = gradients(lambda: layer(inputs, initial_state=start, mask=mask))
    ours = gradients(lambda: padded_lstm(inputs, start[0], start[1], [tf.convert_to_tensor(w) for w in weights], mask))
    for their, our in zip(tf.nest.flatten(theirs), tf.nest.flatten(ours), strict=True):
        np.testing.assert_allclose(our, their, atol=2e-5, rtol=2e-5)


def test_its_gradient_is_that_of_finite_differences() -> None:
    """In float64, against the slow twin that knows no calculus."""
    rng = np.random.default_rng(1)
    shapes = [(2, 3, 2), (2, 2), (2, 2), (2, 8), (2, 8), (8,)]
    values = [tf.constant(rng.normal(size=shape)) for shape in shapes]
    mask = tf.constant([[True, False, False], [True, True, True]])
    back = [tf.constant(rng.normal(size=shape)) for shape in ((2, 3, 2), (2, 2), (2, 2))]

    def loss(inputs: tf.Tensor, h: tf.Tensor, c: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
        found = padded_lstm(inputs, h, c, list(weights), mask)
        return tf.add_n([tf.reduce_sum(a * b) for a, b in zip(found, back, strict=True)])

    theory, numbers = tf.test.compute_gradient(loss, values, delta=1e-5)
    for analytic, numeric in zip(theory, numbers, strict=True):
        np.testing.assert_allclose(analytic, numeric, atol=1e-7)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.02), ("float16", 0.003)])
def test_rounded_products_change_it_little(dtype: str, tolerance: float) -> None:
    """By about as much as a factor is rounded, relative to the whole tensor."""
    rng = np.random.default_rng(2)
    shapes = [(6, 9, 32), (6, 24), (6, 24), (32, 96), (24, 96), (96,)]
    values = [tf.constant(0.2 * rng.normal(size=shape), tf.float32) for shape in shapes]
    mask = tf.constant(np.arange(9) < rng.integers(1, 10, 6)[:, None])

    def gradients(dtype: str) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            inputs, h, c, *weights = values
            found = padded_lstm(inputs, h, c, weights, mask, dtype)
            assert {x.dtype for x in found} == {tf.float32}
            loss = tf.add_n([tf.reduce_sum(tf.sin(x)) for x in found])
        return [*found, *tape.gradient(loss, values)]

    for exact, other in zip(gradients("float32"), gradients(dtype), strict=True):
        assert 0 < tf.norm(exact - other) < tolerance * tf.norm(exact)


@pytest.mark.parametrize("fast", [True, False])
def test_a_layer_without_a_gpu_takes_it_unless_told_not_to(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    asked: list[int] = []

    def noted(*arguments: Any) -> tuple[tf.Tensor, ...]:
        asked.append(arguments[0].shape[1])
        return lstm_sequence(*arguments)

    monkeypatch.setattr(recurrent, "lstm_sequence", noted)
    stack = recurrent.Stack(ModelSettings(num_layers=2, keep_prob=1.0, fast=("lstm",) if fast else ("none",)), 5, 3, 0)
    stack.call(tf.ones((2, 4, 5)), None, tf.ones((2, 4), tf.bool), None)
    assert asked == ([5, 3] if fast else [])
