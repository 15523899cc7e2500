"""The packed LSTM and its gradients against Keras's padded LSTM; the arguments of cuDNN against Keras's.

tests/training has the gradients of models: by cuDNN, emulated, in test_gradients.py; rounded in test_precision.py.
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
from chatbot.model.sequences import MULTIPLE, Packing, compute_packing, pack, unpack, unsized_specs
from chatbot.training.new_model import build_model
from tests.model.cudnn_emulation import emulate_gpu

FEATURES, UNITS = 5, 6


def lstm_gradients(
    inputs: tf.Tensor, start: list[tf.Tensor], weights: list[tf.Tensor], packing: Packing, upstream: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Return the results and gradients for padded inputs, ignoring outputs at padding."""
    arguments = [inputs, *start, *weights]
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        h, c = start
        kernel, recurrent, bias = weights
        outputs, h, c = lstm_sequence(pack(inputs, packing), h, c, kernel, recurrent, bias, packing)
        mask = tf.sequence_mask(packing.lengths, tf.shape(inputs)[1])[:, :, None]
        results = [tf.where(mask, unpack(outputs, packing), 0.0), h, c]
    return [*results, *tape.gradient(results, arguments, output_gradients=upstream)]


@pytest.fixture(scope="module")
def lstm_graph() -> Any:
    """`lstm_gradients` as a graph for batches of all shapes."""
    states = [tf.TensorSpec([None, UNITS])] * 2
    weights = [tf.TensorSpec([size, 4 * UNITS]) for size in (FEATURES, UNITS)] + [tf.TensorSpec([4 * UNITS])]
    packing = unsized_specs(compute_packing(np.array([1]), 1))
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
    packing = compute_packing(lengths, time)
    assert len(packing.to_packed) % MULTIPLE == 0 < packing.fillers
    actual = lstm_graph(inputs, [h, c], tensors, packing, upstream)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5)


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
def test_cudnn_arguments_equal_keras(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All arguments are equal to the bit, including the lengths, which Keras derives from a mask."""
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
def test_cudnn_computes_in_a_supported_dtype(precision: str, dtype: tf.DType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded_arguments(monkeypatch)
    x, h = tf.ones([ROWS, TIME, FEATURES]), tf.ones([ROWS, UNITS])
    weights = tf.ones([FEATURES, 4 * UNITS]), tf.ones([UNITS, 4 * UNITS]), tf.ones([4 * UNITS])
    results = cudnn_sequence(x, [h, h], *weights, tf.constant(LENGTHS), precision)
    assert {calls[0][name].dtype for name in ("input", "input_h", "input_c", "params")} == {dtype}
    assert {result.dtype for result in results} == {tf.float32}


def test_decoder_runs_all_rows_to_the_same_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its final state is not used, and cuDNN is faster with equal lengths."""
    emulate_gpu(monkeypatch)
    model = build_model(ModelSettings(rnn_size=8, embedding_size=6, num_layers=1, bidirectional=False), 17, 1)
    calls = recorded_arguments(monkeypatch)
    model(model.sequences(np.array([[7, 8, 9], [4, 0, 0]])), model.sequences(np.array([[1, 5], [1, 0]])))
    assert [np.asarray(call["sequence_lengths"]).tolist() for call in calls] == [[3, 1], [2, 2]]
