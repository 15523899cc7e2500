"""The LSTM over real tokens, and its gradients, against Keras's LSTM over padded batches."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from chatbot.config.model import ModelSettings
from chatbot.model import recurrent
from chatbot.model.fast.lstm import lstm_sequence
from chatbot.model.packing import Packing, pack, packing_of, unpack
from chatbot.model.recurrent import recurrent_layer
from chatbot.model.sequences import sequences_of, specs_of


def padded_lstm(
    inputs: tf.Tensor, h: tf.Tensor, c: tf.Tensor, weights: list[tf.Tensor], mask: tf.Tensor, dtype: str = "float32"
) -> list[tf.Tensor]:
    """lstm_sequence with padded inputs and outputs, like keras.layers.LSTM."""
    return packed_lstm(inputs, h, c, weights, packing_of(mask.numpy().sum(axis=1), mask.shape[1]), dtype)


def packed_lstm(
    inputs: tf.Tensor, h: tf.Tensor, c: tf.Tensor, weights: list[tf.Tensor], packing: Packing, dtype: str = "float32"
) -> list[tf.Tensor]:
    """padded_lstm, with the packing in place of the mask."""
    kernel, recurrent_kernel, bias = weights
    outputs, h, c = lstm_sequence(pack(inputs, packing), h, c, kernel, recurrent_kernel, bias, packing, dtype)
    return [unpack(outputs, packing), h, c]


@settings(max_examples=12)
@given(
    rows=st.integers(1, 5),
    time=st.integers(1, 7),
    features=st.integers(1, 6),
    units=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_outputs_and_gradients_equal_keras(rows: int, time: int, features: int, units: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = tf.constant(rng.normal(size=(rows, time, features)), tf.float32)
    start = [tf.constant(rng.normal(size=(rows, units)), tf.float32) for _ in range(2)]
    mask = tf.constant(np.arange(time) < rng.integers(1, time + 1, rows)[:, None])
    layer = recurrent_layer("lstm", features, units)
    weights = [variable.value for variable in layer.trainable_variables]
    for weight in weights:
        weight.assign(rng.normal(size=weight.shape))
    # Random gradients of the outputs and both states. Outputs at padding are undefined, so they are not compared.
    real = tf.cast(mask, tf.float32)[:, :, None]
    upstream = [
        tf.constant(rng.normal(size=shape), tf.float32) for shape in ((rows, time, units), *[(rows, units)] * 2)
    ]

    def gradients(run: object) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch((inputs, start))
            outputs, h, c = run()  # type: ignore[operator]
            results = [outputs * real, h, c]
        return results, tape.gradient(results, [inputs, *start, *weights], output_gradients=upstream)

    expected = gradients(lambda: layer(inputs, initial_state=start, mask=mask))
    actual = gradients(
        lambda: padded_lstm(inputs, start[0], start[1], [tf.convert_to_tensor(w) for w in weights], mask)
    )
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5)


def test_gradients_equal_finite_differences() -> None:
    """In float64."""
    rng = np.random.default_rng(1)
    shapes = [(2, 3, 2), (2, 2), (2, 2), (2, 8), (2, 8), (8,)]
    values = [tf.constant(rng.normal(size=shape)) for shape in shapes]
    mask = tf.constant([[True, False, False], [True, True, True]])
    upstream = [tf.constant(rng.normal(size=shape)) for shape in ((2, 3, 2), (2, 2), (2, 2))]

    def loss(inputs: tf.Tensor, h: tf.Tensor, c: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
        results = padded_lstm(inputs, h, c, list(weights), mask)
        return tf.add_n([tf.reduce_sum(a * b) for a, b in zip(results, upstream, strict=True)])

    analytic_gradients, numeric_gradients = tf.test.compute_gradient(loss, values, delta=1e-5)
    for analytic, numeric in zip(analytic_gradients, numeric_gradients, strict=True):
        np.testing.assert_allclose(analytic, numeric, atol=1e-7)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.02), ("float16", 0.003)])
def test_rounded_products_change_outputs_and_gradients_little(dtype: str, tolerance: float) -> None:
    """The change, relative to the norm of each tensor, is about the rounding error of a factor."""
    rng = np.random.default_rng(2)
    shapes = [(6, 9, 32), (6, 24), (6, 24), (32, 96), (24, 96), (96,)]
    values = [tf.constant(0.2 * rng.normal(size=shape), tf.float32) for shape in shapes]
    mask = tf.constant(np.arange(9) < rng.integers(1, 10, 6)[:, None])

    def gradients(dtype: str) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            inputs, h, c, *weights = values
            results = padded_lstm(inputs, h, c, weights, mask, dtype)
            assert {x.dtype for x in results} == {tf.float32}
            loss = tf.add_n([tf.reduce_sum(tf.sin(x)) for x in results])
        return [*results, *tape.gradient(loss, values)]

    for exact, rounded in zip(gradients("float32"), gradients(dtype), strict=True):
        assert 0 < tf.norm(exact - rounded) < tolerance * tf.norm(exact)


def test_one_graph_serves_batches_of_all_shapes() -> None:
    """Its results equal those computed eagerly, where tf.while_loop is a loop of Python."""
    rng = np.random.default_rng(3)
    weights = [tf.constant(rng.normal(size=shape), tf.float32) for shape in [(3, 16), (4, 16), (16,)]]

    def gradients(inputs: tf.Tensor, h: tf.Tensor, c: tf.Tensor, packing: Packing) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([inputs, h, c, *weights])
            results = packed_lstm(inputs, h, c, weights, packing)
            loss = tf.add_n([tf.reduce_sum(tf.sin(x)) for x in results])
        return [*results, *tape.gradient(loss, [inputs, h, c, *weights])]

    shapes = ([None, None, 3], [None, 4], [None, 4])
    packing = specs_of(packing_of(np.array([1]), 1))
    signature = [*(tf.TensorSpec(shape) for shape in shapes), packing]
    graph = tf.function(gradients, input_signature=signature, autograph=False)
    for lengths in ([3, 1, 3], [1], [5, 4]):
        rows, time = len(lengths), max(lengths)
        values = [tf.constant(rng.normal(size=s), tf.float32) for s in ((rows, time, 3), (rows, 4), (rows, 4))]
        packing = packing_of(np.array(lengths), time)
        arguments = *values, packing
        for a, b in zip(graph(*arguments), gradients(*arguments), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("fast", [True, False])
def test_stack_uses_fast_lstm_without_gpu(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    input_sizes: list[int] = []

    def recorded(*arguments: Any) -> tuple[tf.Tensor, ...]:
        input_sizes.append(arguments[0].shape[1])
        return lstm_sequence(*arguments)

    monkeypatch.setattr(recurrent, "lstm_sequence", recorded)
    stack = recurrent.Stack(ModelSettings(keep_prob=1.0, plain_layers=not fast), 2, 5, 3, 0)
    sequences = sequences_of(np.ones((2, 4)), packed=fast)
    stack.call(tf.ones((*sequences.ids.shape, 5)), None, sequences, None)
    assert input_sizes == ([5, 3] if fast else [])
