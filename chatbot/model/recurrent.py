"""A stack of recurrent layers, over a whole sequence or one step at a time, with the same weights."""

from typing import Any

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.dropout import Dropout
from chatbot.model.fast.lstm import lstm_sequence
from chatbot.model.packing import pack, packing, unpack
from chatbot.model.product import policy

# One layer's state: [h, c] of an LSTM, [h] of a GRU, each [rows, units].
State = list[tf.Tensor]


def recurrent_layer(cell: str, inputs: int, units: int, precision: str = "float32") -> keras.layers.RNN:
    """An LSTM or GRU layer, with its weights, that meets every condition of cuDNN's fused path.

    The conditions (Keras, backend/tensorflow/rnn.py): tanh and sigmoid, a bias, not unrolled, no
    recurrent dropout, for a GRU reset_after. Masks must be right-padded and no row fully masked.
    """
    kind = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[cell]
    layer = kind(
        units,
        return_sequences=True,
        return_state=True,
        use_cudnn="auto",
        dtype=policy(precision),
        # Drawn or read when all layers are there: to draw an orthogonal matrix takes longer than to read it.
        kernel_initializer="zeros",
        recurrent_initializer="zeros",
    )
    layer.build((None, None, inputs))
    return layer


class Stack(keras.layers.Layer):
    """settings.num_layers recurrent layers, dropout in front of each.

    With "lstm" in settings.fast the CPU runs LSTMs over real tokens only (`chatbot.model.fast.lstm`).
    """

    def __init__(
        self, settings: ModelSettings, inputs: int, units: int, first_dropout: int, precision: str = "float32"
    ) -> None:
        super().__init__()
        sizes = [inputs, *[units] * (settings.num_layers - 1)]
        self.recurrent = [recurrent_layer(settings.cell, size, units, precision) for size in sizes]
        self.dropouts = [Dropout(settings.keep_prob, first_dropout + i) for i in range(settings.num_layers)]
        self._fast = settings.cell == "lstm" and "lstm" in settings.fast
        self.built = True  # its layers are; Keras would find out by tracing the call

    def call(
        self,
        inputs: tf.Tensor,
        initial: list[State] | None,
        mask: tf.Tensor,
        seed: tf.Tensor | None,
        last: bool = True,
    ) -> tuple[tf.Tensor, list[State]]:
        """inputs [rows, time, units in] -> outputs [rows, time, units], the last state of each layer.

        mask [rows, time]: True at real tokens. What the outputs are at padding is not said. last: whether the
        last states are wanted; where not, Keras's layers need no mask, without which cuDNN is faster.
        """
        if self._fast and not tf.config.list_logical_devices("GPU"):
            return self._packed(inputs, initial, mask, seed)
        states: list[State] = []
        outputs = inputs
        for i, (layer, dropout) in enumerate(zip(self.recurrent, self.dropouts, strict=True)):
            start = None if initial is None else initial[i]
            found = layer(dropout(outputs, seed), initial_state=start, mask=mask if last else None)
            outputs, *state = (tf.cast(x, inputs.dtype) for x in found)
            states.append(state)
        return outputs, states

    def _packed(
        self, inputs: tf.Tensor, initial: list[State] | None, mask: tf.Tensor, seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, list[State]]:
        where = packing(mask)
        rows, outputs = tf.shape(inputs)[0], pack(inputs, where)  # [tokens, units in]
        states: list[State] = []
        for i, (layer, dropout) in enumerate(zip(self.recurrent, self.dropouts, strict=True)):
            nothing = tf.zeros([rows, layer.units], outputs.dtype)
            h, c = [nothing, nothing] if initial is None else initial[i]
            cell = layer.cell
            kernel, recurrent, bias = map(tf.convert_to_tensor, (cell.kernel, cell.recurrent_kernel, cell.bias))
            inputs = dropout(outputs, seed)
            outputs, *state = lstm_sequence(inputs, h, c, kernel, recurrent, bias, where, layer.compute_dtype)
            states.append(state)
        return unpack(outputs, where), states

    def step(self, inputs: tf.Tensor, states: list[State]) -> tuple[tf.Tensor, list[State]]:
        """inputs [rows, units in] -> outputs [rows, units], the states after this one step."""
        following: list[State] = []
        outputs = inputs
        for layer, state in zip(self.recurrent, states, strict=True):
            found, new = layer.cell(outputs, state)
            outputs = tf.cast(found, inputs.dtype)
            following.append([tf.cast(x, inputs.dtype) for x in _as_list(new)])
        return outputs, following


def _as_list(state: Any) -> State:
    return list(state) if isinstance(state, (list, tuple)) else [state]
