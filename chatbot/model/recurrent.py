"""A stack of recurrent layers, over a whole sequence or one step at a time, with the same weights."""

from typing import Any

import keras
import tensorflow as tf

from chatbot.model.dropout import Dropout
from chatbot.model.lstm import lstm_sequence

# One layer's state: [h, c] of an LSTM, [h] of a GRU, each [rows, units].
State = list[tf.Tensor]


def recurrent_layer(cell: str, units: int) -> keras.layers.RNN:
    """An LSTM or GRU layer that meets every condition of cuDNN's fused path.

    The conditions (Keras, backend/tensorflow/rnn.py): tanh and sigmoid, a bias, not unrolled, no
    recurrent dropout, for a GRU reset_after. Masks must be right-padded and no row fully masked.
    """
    layer = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[cell]
    return layer(units, return_sequences=True, return_state=True, use_cudnn="auto")


class Stack(keras.layers.Layer):
    """num_layers recurrent layers, dropout in front of each."""

    def __init__(self, cell: str, units: int, num_layers: int, keep_prob: float, first_dropout: int) -> None:
        super().__init__()
        self.recurrent = [recurrent_layer(cell, units) for _ in range(num_layers)]
        self.dropouts = [Dropout(keep_prob, first_dropout + i) for i in range(num_layers)]

    def call(
        self,
        inputs: tf.Tensor,
        initial: list[State] | None,
        mask: tf.Tensor | None,
        seed: tf.Tensor | None,
    ) -> tuple[tf.Tensor, list[State]]:
        """inputs [rows, time, units in] -> outputs [rows, time, units], the last state of each layer."""
        states: list[State] = []
        outputs = inputs
        for i, (layer, dropout) in enumerate(zip(self.recurrent, self.dropouts, strict=True)):
            start = None if initial is None else initial[i]
            outputs, *state = run(layer, dropout(outputs, seed), start, mask)
            states.append(state)
        return outputs, states

    def step(self, inputs: tf.Tensor, states: list[State]) -> tuple[tf.Tensor, list[State]]:
        """inputs [rows, units in] -> outputs [rows, units], the states after this one step."""
        following: list[State] = []
        outputs = inputs
        for layer, state in zip(self.recurrent, states, strict=True):
            outputs, new = layer.cell(outputs, state)
            following.append(_as_list(new))
        return outputs, following


def run(layer: keras.layers.RNN, inputs: tf.Tensor, start: State | None, mask: tf.Tensor | None) -> list[tf.Tensor]:
    """The outputs of a layer and its last state: by cuDNN where there is a GPU, an LSTM on the CPU by our own loop."""
    if not isinstance(layer, keras.layers.LSTM) or tf.config.list_logical_devices("GPU"):
        return layer(inputs, initial_state=start, mask=mask)
    if not layer.built:
        layer.build(inputs.shape)
    h, c = start or [tf.zeros([tf.shape(inputs)[0], layer.units], inputs.dtype)] * 2
    cell = layer.cell
    kernel, recurrent, bias = map(tf.convert_to_tensor, (cell.kernel, cell.recurrent_kernel, cell.bias))
    return list(lstm_sequence(inputs, h, c, kernel, recurrent, bias, mask))


def _as_list(state: Any) -> State:
    return list(state) if isinstance(state, (list, tuple)) else [state]
