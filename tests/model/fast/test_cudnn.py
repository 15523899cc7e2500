"""The arguments of cuDNN equal those that Keras gives it, and the model computes the same by cuDNN as on the CPU."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.fast.cudnn import cudnn_sequence
from chatbot.model.new_model import built_model
from chatbot.model.recurrent import recurrent_layer
from tests.model.fast.cudnn_emulation import emulate_gpu, recorded_arguments

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
