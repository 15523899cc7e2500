"""A stack of recurrent layers, run over a whole sequence or one step at a time."""

from typing import Any

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.dropout import Dropout
from chatbot.model.fast.lstm import lstm_sequence
from chatbot.model.matmul import policy
from chatbot.model.packing import pack, packing_of, unpack

# One layer's state: [h, c] of an LSTM, [h] of a GRU, each [rows, units].
State = list[tf.Tensor]


def recurrent_layer(cell: str, inputs: int, units: int, precision: str = "float32") -> keras.layers.RNN:
    """Return an LSTM or GRU layer with weights of zeros, which satisfies the conditions of cuDNN's fused kernels.

    The conditions (Keras, backend/tensorflow/rnn.py): tanh and sigmoid, a bias, not unrolled, no recurrent dropout,
    for a GRU reset_after. Masks must be right-padded, with at least one token in each row.
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

    With "lstm" in settings.fast, LSTMs run over real tokens only on the CPU (`chatbot.model.fast.lstm`).

    inputs: the size of the input vectors. first_dropout: the number of the first `Dropout`; the others follow.
    """

    def __init__(
        self, settings: ModelSettings, inputs: int, units: int, first_dropout: int, precision: str = "float32"
    ) -> None:
        super().__init__()
        sizes = [inputs, *[units] * (settings.num_layers - 1)]
        self.recurrent = [recurrent_layer(settings.cell, size, units, precision) for size in sizes]
        self.dropouts = [Dropout(settings.keep_prob, first_dropout + i) for i in range(settings.num_layers)]
        self._fast = settings.cell == "lstm" and "lstm" in settings.fast
        self.built = True  # otherwise Keras traces `call` to build the layer

    def call(
        self,
        inputs: tf.Tensor,
        initial: list[State] | None,
        mask: tf.Tensor,
        seed: tf.Tensor | None,
        last: bool = True,
    ) -> tuple[tf.Tensor, list[State]]:
        """inputs [rows, time, features] -> outputs [rows, time, units], the last state of each layer.

        The outputs at padding are undefined.

        initial: the first state of each layer; None: zeros. mask: [rows, time] bool, True at real tokens.
        seed: [2] int32 draws the dropout masks; None: no dropout. last: whether the last states are used. If not,
        they are undefined, and cuDNN runs without a mask, which is faster.
        """
        if self._fast and not tf.config.list_logical_devices("GPU"):
            return self._packed(inputs, initial, mask, seed)
        states: list[State] = []
        outputs = inputs
        for i, (layer, dropout) in enumerate(zip(self.recurrent, self.dropouts, strict=True)):
            first = None if initial is None else initial[i]
            results = layer(dropout(outputs, seed), initial_state=first, mask=mask if last else None)
            outputs, *state = (tf.cast(x, inputs.dtype) for x in results)
            states.append(state)
        return outputs, states

    def _packed(
        self, inputs: tf.Tensor, initial: list[State] | None, mask: tf.Tensor, seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, list[State]]:
        packing = packing_of(mask)
        rows, outputs = tf.shape(inputs)[0], pack(inputs, packing)  # [tokens, features]
        states: list[State] = []
        for i, (layer, dropout) in enumerate(zip(self.recurrent, self.dropouts, strict=True)):
            zeros = tf.zeros([rows, layer.units], outputs.dtype)
            h, c = [zeros, zeros] if initial is None else initial[i]
            cell = layer.cell
            kernel, recurrent, bias = map(tf.convert_to_tensor, (cell.kernel, cell.recurrent_kernel, cell.bias))
            outputs, *state = lstm_sequence(
                dropout(outputs, seed), h, c, kernel, recurrent, bias, packing, layer.compute_dtype
            )
            states.append(state)
        return unpack(outputs, packing), states

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
