"""The fast recurrent layers: the LSTM over real tokens and its gradients against Keras's over padded batches; cuDNN's.

The arguments of cuDNN equal those that Keras gives it, and the model computes the same by cuDNN as on the CPU.
"""

import dataclasses
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from chatbot.config.model import ModelSettings
from chatbot.model import recurrent
from chatbot.model.fast_recurrent import cudnn_sequence, lstm_sequence
from chatbot.model.new_model import built_model
from chatbot.model.recurrent import recurrent_layer
from chatbot.model.sequences import Packing, pack, packing_of, sequences_of, specs_of, unpack
from tests.model.cudnn_emulation import emulate_gpu, recorded_arguments


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
    stack.call(tf.ones((*sequences.ids.shape, 5)), stack.zero_states(2, tf.float32), sequences, None)
    assert input_sizes == ([5, 3] if fast else [])


ROWS, TIME, FEATURES, UNITS = 3, 4, 5, 6
LENGTHS = np.array([4, 1, 2], np.int32)
VOCABULARY = 17


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


KINDS = [
    ModelSettings(rnn_size=8, embedding_size=6, num_layers=2, cell=cell, bidirectional=bidirectional)
    for cell in ("lstm", "gru")
    for bidirectional in (True, False)
]


@pytest.mark.parametrize("settings", KINDS, ids=[f"{s.cell}-{s.bidirectional}" for s in KINDS])
def test_model_computes_the_same_logits_on_a_gpu(settings: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built_model(settings, VOCABULARY, seed=1)
    source, target_in = np.array([[7, 8, 9, 4], [4, 5, 0, 0]]), np.array([[1, 5, 6], [1, 8, 0]])
    expected = model(model.sequences(source), model.sequences(target_in))
    emulate_gpu(monkeypatch)
    sequences = model.sequences(source), model.sequences(target_in)
    assert sequences[0].ids.shape == source.shape  # padded, as cuDNN takes them
    real = slice(None, 5)  # the real tokens of the replies; fillers are undefined
    np.testing.assert_allclose(model(*sequences)[real], expected[real], atol=1e-5)


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
    model = built_model(dataclasses.replace(KINDS[1], num_layers=1), VOCABULARY, seed=1)
    emulate_gpu(monkeypatch)
    calls = recorded_arguments(monkeypatch)
    model(model.sequences(np.array([[7, 8, 9], [4, 0, 0]])), model.sequences(np.array([[1, 5], [1, 0]])))
    assert [np.asarray(call["sequence_lengths"]).tolist() for call in calls] == [[3, 1], [2, 2]]
