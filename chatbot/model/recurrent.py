"""A stack of recurrent layers, run over a whole sequence or one step at a time."""

from typing import Any

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.dropout import Dropout
from chatbot.model.fast.cudnn import cudnn_sequence
from chatbot.model.fast.lstm import lstm_sequence
from chatbot.model.gpu import on_gpu
from chatbot.model.matmul import policy
from chatbot.model.sequences import Sequences

# One layer's state: [h, c] of an LSTM, [h] of a GRU, each [rows, units].
State = list[tf.Tensor]


def is_packed(settings: ModelSettings) -> bool:
    """Return whether stacks run over packed tokens [tokens, features], not over [rows, time, features].

    With "lstm" in settings.fast, LSTMs on the CPU run over real tokens only (`chatbot.model.fast.lstm`).
    """
    return settings.cell == "lstm" and "lstm" in settings.fast and not on_gpu()


def recurrent_layer(cell: str, inputs: int, units: int, precision: str = "float32") -> keras.layers.RNN:
    """Return an LSTM or GRU layer with weights of zeros, which satisfies the conditions of cuDNN's fused kernels.

    The conditions (Keras, backend/tensorflow/rnn.py): tanh and sigmoid, a bias, not unrolled, no recurrent dropout,
    for a GRU reset_after. Sequences must be right-padded, with at least one token in each row.
    """
    layer_class = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[cell]
    layer = layer_class(
        units,
        return_sequences=True,
        return_state=True,
        use_cudnn="auto",
        dtype=policy(precision),
        # The weights are drawn by `built_model`, or read from a checkpoint. Drawing orthogonal matrices here would take
        # longer than reading the checkpoint.
        kernel_initializer="zeros",
        recurrent_initializer="zeros",
    )
    layer.build((None, None, inputs))
    return layer


class Stack(keras.layers.Layer):
    """settings.num_layers recurrent layers, with dropout before each.

    inputs: the size of the input vectors. first_dropout: the number of the first `Dropout`; the others follow.
    """

    def __init__(
        self, settings: ModelSettings, inputs: int, units: int, first_dropout: int, precision: str = "float32"
    ) -> None:
        super().__init__()
        sizes = [inputs, *[units] * (settings.num_layers - 1)]
        self.recurrent = [recurrent_layer(settings.cell, size, units, precision) for size in sizes]
        self.dropouts = [Dropout(settings.keep_prob, first_dropout + i) for i in range(settings.num_layers)]
        self._settings = settings
        self.built = True  # otherwise Keras traces `call` to build the layer

    def call(
        self,
        inputs: tf.Tensor,
        initial: list[State] | None,
        sequences: Sequences,
        key: tf.Tensor | None,
        last: bool = True,
    ) -> tuple[tf.Tensor, list[State]]:
        """inputs [tokens, features] or [rows, time, features], by `is_packed` -> outputs alike, and the last states.

        The outputs at padding are undefined. The last states are those of each layer.

        initial: the first state of each layer; None: zeros. sequences: the lengths and indices of the rows.
        key: [1] uint64 draws the dropout masks; None: no dropout. last: whether the last states are used. If not,
        they are undefined, and cuDNN runs all rows to the same length, which is faster.
        """
        if initial is None:
            rows = tf.shape(sequences.packing.lengths)[0]
            states_of_layer = 2 if self._settings.cell == "lstm" else 1
            zeros = tf.zeros([rows, self.recurrent[0].units], inputs.dtype)
            initial = [[zeros] * states_of_layer] * len(self.recurrent)
        states: list[State] = []
        outputs = inputs
        for layer, dropout, first in zip(self.recurrent, self.dropouts, initial, strict=True):
            outputs, state = self._layer(layer, dropout(outputs, key), first, sequences, last)
            states.append(state)
        return outputs, states

    def _layer(
        self, layer: keras.layers.RNN, inputs: tf.Tensor, initial: State, sequences: Sequences, last: bool
    ) -> tuple[tf.Tensor, State]:
        cell, packing = layer.cell, sequences.packing
        kernel, recurrent, bias = map(tf.convert_to_tensor, (cell.kernel, cell.recurrent_kernel, cell.bias))
        if is_packed(self._settings):
            h, c = initial
            outputs, *state = lstm_sequence(inputs, h, c, kernel, recurrent, bias, packing, layer.compute_dtype)
        elif "lstm" in self._settings.fast and on_gpu():
            lengths = packing.lengths if last else tf.fill(tf.shape(packing.lengths), tf.shape(inputs)[1])
            outputs, *state = cudnn_sequence(inputs, initial, kernel, recurrent, bias, lengths, layer.compute_dtype)
        else:
            mask = sequences.mask if last else None
            results = layer(inputs, initial_state=initial, mask=mask)
            outputs, *state = (tf.cast(x, inputs.dtype) for x in results)
        return outputs, state

    def step(self, inputs: tf.Tensor, states: list[State]) -> tuple[tf.Tensor, list[State]]:
        """Run one step, without dropout: inputs [rows, features] -> outputs [rows, units], the state of each layer."""
        new_states: list[State] = []
        outputs = inputs
        for layer, state in zip(self.recurrent, states, strict=True):
            results, new_state = layer.cell(outputs, state)
            outputs = tf.cast(results, inputs.dtype)
            new_states.append([tf.cast(x, inputs.dtype) for x in _as_list(new_state)])
        return outputs, new_states


def _as_list(state: Any) -> State:
    return list(state) if isinstance(state, (list, tuple)) else [state]
