"""An emulation of cuDNN's recurrent operation, and models that compute as on a GPU.

The layout of the parameters is that of cudnnGetRNNWeightParams: for each gate its input matrix, then for each gate its
recurrent matrix, each [units, inputs], then the two biases of each gate. Gates: input, forget, cell, output of an LSTM;
reset, update, new of a GRU.
"""

import pytest
import tensorflow as tf


def emulated_rnn(
    input: tf.Tensor,
    input_h: tf.Tensor,
    input_c: tf.Tensor,
    params: tf.Tensor,
    sequence_lengths: tf.Tensor,
    rnn_mode: str,
    time_major: bool,
    is_training: bool,
) -> tuple[tf.Tensor | None, ...]:
    """Compute tf.raw_ops.CudnnRNNV3 for one layer, batch-major, step by step, with TensorFlow's gradients."""
    assert is_training
    assert not time_major
    h, features = input_h[:, 0], input.shape[2]
    c = input_c[:, 0] if rnn_mode == "lstm" else None
    units, gates = h.shape[1], 4 if rnn_mode == "lstm" else 3
    sizes = [units * features] * gates + [units * units] * gates + [units] * 2 * gates
    parts = tf.split(params, sizes)
    kernels = [tf.reshape(part, [units, features]) for part in parts[:gates]]
    recurrents = [tf.reshape(part, [units, units]) for part in parts[gates : 2 * gates]]
    biases = parts[2 * gates :]
    outputs = []
    for t in range(input.shape[1]):
        x = [tf.matmul(input[:, t], k, transpose_b=True) + b for k, b in zip(kernels, biases[:gates], strict=True)]
        r = [tf.matmul(h, k, transpose_b=True) + b for k, b in zip(recurrents, biases[gates:], strict=True)]
        if rnn_mode == "lstm":
            i, f, g, o = (a + b for a, b in zip(x, r, strict=True))
            new_c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            new_h = tf.sigmoid(o) * tf.tanh(new_c)
        else:
            reset, update = tf.sigmoid(x[0] + r[0]), tf.sigmoid(x[1] + r[1])
            new_h, new_c = (1 - update) * tf.tanh(x[2] + reset * r[2]) + update * h, None
        goes_on = (t < sequence_lengths)[:, None]  # [rows, 1]
        h = tf.where(goes_on, new_h, h)
        c = None if new_c is None else tf.where(goes_on, new_c, c)
        outputs.append(tf.where(goes_on, new_h, 0))
    return tf.stack(outputs, 1), h[:, None], None if c is None else c[:, None], None, None


def emulate_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make new models compute as on a GPU, on any device, with an emulated cuDNN."""
    monkeypatch.setattr("chatbot.model.seq2seq.is_gpu", lambda device: True)
    monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", emulated_rnn)
