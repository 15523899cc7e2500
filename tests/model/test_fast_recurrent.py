"""The LSTM over real tokens and its gradients against Keras's over padded batches; cuDNN's arguments against Keras's.

test_gradients.py of training has the gradients of models by cuDNN, emulated.
"""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from chatbot.config.model import ModelSettings
from chatbot.model.fast_recurrent import cudnn_sequence, lstm_sequence
from chatbot.model.recurrent import recurrent_layer
from chatbot.model.sequences import MULTIPLE, Packing, pack, packing_of, specs_of, unpack
from chatbot.training.new_model import built_model
from tests.model.cudnn_emulation import emulate_gpu

FEATURES, UNITS = 5, 6


def padded_lstm(
    inputs: tf.Tensor, h: tf.Tensor, c: tf.Tensor, weights: list[tf.Tensor], packing: Packing, dtype: str = "float32"
) -> list[tf.Tensor]:
    """lstm_sequence with padded inputs and outputs, like keras.layers.LSTM."""
    kernel, recurrent, bias = weights
    outputs, h, c = lstm_sequence(pack(inputs, packing), h, c, kernel, recurrent, bias, packing, dtype)
    return [unpack(outputs, packing), h, c]


def lstm_gradients(
    inputs: tf.Tensor, start: list[tf.Tensor], weights: list[tf.Tensor], packing: Packing, upstream: list[tf.Tensor]
) -> list[tf.Tensor]:
    """The results, and the gradients by those of the results. Outputs at padding are undefined, and left out."""
    arguments = [inputs, *start, *weights]
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        outputs, h, c = padded_lstm(inputs, start[0], start[1], weights, packing)
        mask = tf.sequence_mask(packing.lengths, tf.shape(outputs)[1])[:, :, None]
        results = [tf.where(mask, outputs, 0.0), h, c]
    return [*results, *tape.gradient(results, arguments, output_gradients=upstream)]


@pytest.fixture(scope="module")
def lstm_graph() -> Any:
    """`lstm_gradients` as a graph for batches of all shapes."""
    states = [tf.TensorSpec([None, UNITS])] * 2
    weights = [tf.TensorSpec([size, 4 * UNITS]) for size in (FEATURES, UNITS)] + [tf.TensorSpec([4 * UNITS])]
    packing = specs_of(packing_of(np.array([1]), 1))
    signature = [tf.TensorSpec([None, None, FEATURES]), states, weights, packing]
    signature.append([tf.TensorSpec([None, None, UNITS]), *states])
    return tf.function(lstm_gradients, input_signature=signature, autograph=False)


@settings(max_examples=12)
@given(rows=st.integers(1, 5), time=st.integers(1, 7), seed=st.integers(0, 99))
def test_outputs_and_gradients_equal_keras_in_one_graph(lstm_graph: Any, rows: int, time: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = (rows, time, FEATURES), (rows, UNITS), (rows, UNITS), (rows, time, UNITS), (rows, UNITS), (rows, UNITS)
    inputs, h, c, *upstream = (tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes)
    lengths = rng.integers(1, time + 1, rows)
    layer = recurrent_layer("lstm", FEATURES, UNITS)
    weights = [variable.value for variable in layer.trainable_variables]
    for weight in weights:
        weight.assign(rng.normal(size=weight.shape))
    mask = tf.sequence_mask(lengths, time)
    with tf.GradientTape() as tape:
        tape.watch((inputs, h, c))
        outputs, *states = layer(inputs, initial_state=[h, c], mask=mask)
        expected = [tf.where(mask[:, :, None], outputs, 0.0), *states]
    expected += tape.gradient(expected, [inputs, h, c, *weights], output_gradients=upstream)
    tensors = [tf.convert_to_tensor(weight) for weight in weights]
    packing = packing_of(lengths, time)
    assert len(packing.to_packed) % MULTIPLE == 0 < packing.fillers
    actual = lstm_graph(inputs, [h, c], tensors, packing, upstream)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.02), ("float16", 0.003)])
def test_rounded_products_change_outputs_and_gradients_little(dtype: str, tolerance: float) -> None:
    """The change, relative to the norm of each tensor, is about the rounding error of a factor."""
    rng = np.random.default_rng(2)
    shapes = [(6, 9, 32), (6, 24), (6, 24), (32, 96), (24, 96), (96,)]
    values = [tf.constant(0.2 * rng.normal(size=shape), tf.float32) for shape in shapes]
    packing = packing_of(rng.integers(1, 10, 6), 9)

    def gradients(dtype: str) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            inputs, h, c, *weights = values
            results = padded_lstm(inputs, h, c, weights, packing, dtype)
            assert {x.dtype for x in results} == {tf.float32}
            loss = tf.add_n([tf.reduce_sum(tf.sin(x)) for x in results])
        return [*results, *tape.gradient(loss, values)]

    for exact, rounded in zip(gradients("float32"), gradients(dtype), strict=True):
        assert 0 < tf.norm(exact - rounded) < tolerance * tf.norm(exact)


ROWS, TIME = 3, 4
LENGTHS = np.array([4, 1, 2], np.int32)


def recorded_arguments(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the arguments of cuDNN; its results are zeros."""
    calls: list[dict[str, Any]] = []

    def record(**arguments: Any) -> tuple[tf.Tensor, ...]:
        calls.append(arguments)
        rows, time, _ = arguments["input"].shape
        state = tf.zeros_like(arguments["input_h"])
        return tf.zeros([rows, time, state.shape[2]], state.dtype), state, state, tf.zeros(0), tf.zeros(0)

    monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", record)
    return calls


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_arguments_of_cudnn_equal_those_of_keras(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras has the lengths from a mask; all other arguments are equal, too, to the bit."""
    rng = np.random.default_rng(1)
    layer = recurrent_layer(cell, FEATURES, UNITS)
    layer.use_cudnn = True
    for weight in layer.trainable_variables:
        weight.assign(rng.normal(size=weight.shape))
    inputs = tf.constant(rng.normal(size=(ROWS, TIME, FEATURES)), tf.float32)
    initial = [tf.constant(rng.normal(size=(ROWS, UNITS)), tf.float32) for _ in range(2 if cell == "lstm" else 1)]
    mask = tf.constant(np.arange(TIME) < LENGTHS[:, None])
    calls = recorded_arguments(monkeypatch)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda *_: ["a GPU"])
    layer(inputs, initial_state=initial, mask=mask)
    kernel, recurrent, bias = (weight.value for weight in layer.trainable_variables)
    cudnn_sequence(inputs, initial, kernel, recurrent, bias, tf.constant(LENGTHS))
    by_keras, ours = calls
    assert set(ours) == set(by_keras)
    for name, value in ours.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(by_keras[name]), err_msg=name)


@pytest.mark.parametrize(("precision", "dtype"), [("bfloat16", tf.float32), ("float16", tf.float16)])
def test_cudnn_computes_in_a_type_that_it_has(precision: str, dtype: tf.DType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded_arguments(monkeypatch)
    x, h = tf.ones([ROWS, TIME, FEATURES]), tf.ones([ROWS, UNITS])
    weights = tf.ones([FEATURES, 4 * UNITS]), tf.ones([UNITS, 4 * UNITS]), tf.ones([4 * UNITS])
    results = cudnn_sequence(x, [h, h], *weights, tf.constant(LENGTHS), precision)
    assert {calls[0][name].dtype for name in ("input", "input_h", "input_c", "params")} == {dtype}
    assert {result.dtype for result in results} == {tf.float32}


def test_decoder_runs_all_rows_to_the_same_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody uses its last state, and cuDNN is faster with equal lengths."""
    emulate_gpu(monkeypatch)
    model = built_model(ModelSettings(rnn_size=8, embedding_size=6, num_layers=1, bidirectional=False), 17, 1)
    calls = recorded_arguments(monkeypatch)
    model(model.sequences(np.array([[7, 8, 9], [4, 0, 0]])), model.sequences(np.array([[1, 5], [1, 0]])))
    assert [np.asarray(call["sequence_lengths"]).tolist() for call in calls] == [[3, 1], [2, 2]]
