"""Recurrent layers: a stack with dropout, over a whole sequence or one step at a time, and the encoder made of them."""

from typing import Any

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.fast_recurrent import cudnn_sequence, lstm_sequence
from chatbot.model.operations import joined, policy, with_gradient
from chatbot.model.sequences import Sequences, mirror, unpack

PHILOX = 1  # the number of the generator in TensorFlow (Salmon et al., 2011)

# The numbers of the dropouts of a model. Those of a stack's or a Transformer's layers follow the first.
FORWARD_ENCODER = 100
BACKWARD_ENCODER = 200
DECODER = 300
PROJECTION = 400


class Dropout(keras.layers.Layer):
    """Keeps each unit with probability keep_prob and scales it by 1 / keep_prob (Srivastava et al., 2014).

    keras.layers.Dropout has a seed variable, by which towers run one after another; here the mask is a function of the
    key and the number of the layer, unique in the model.
    """

    def __init__(self, keep_prob: float, number: int) -> None:
        super().__init__()
        self.supports_masking = True
        self.rate = 1.0 - keep_prob
        self.number = number

    def call(self, inputs: tf.Tensor, key: tf.Tensor | None) -> tf.Tensor:
        """inputs of any shape -> the same shape. key: [1] uint64; None returns the inputs, as outside training."""
        if key is None or self.rate == 0.0:
            return inputs
        return kept(inputs, self.scales(tf.shape(inputs), key))

    def several(self, number: int, inputs: tf.Tensor, key: tf.Tensor | None) -> list[tf.Tensor | None]:
        """Return the factors of `number` dropouts of inputs of this shape, drawn at once; None for each without key."""
        if key is None or self.rate == 0.0:
            return [None] * number
        shape = tf.concat([[number], tf.shape(inputs)], 0)
        factors: list[tf.Tensor | None] = tf.unstack(self.scales(shape, key), num=number)
        return factors

    def scales(self, shape: tf.Tensor | list[Any], key: tf.Tensor) -> tf.Tensor:
        """Return the factors of inputs of this shape, float32: 0 or 1 / keep_prob."""
        is_kept = uniform(shape, key, self.number) >= self.rate
        return tf.cast(is_kept, tf.float32) * (1.0 / (1.0 - self.rate))


def kept(inputs: tf.Tensor, scales: tf.Tensor | None) -> tf.Tensor:
    """Return inputs times the factors of a dropout, in the same shape; None: of none."""
    if scales is None:
        return inputs
    return with_gradient(lambda x: x * scales, lambda gradient: gradient * scales, inputs)


def uniform(shape: tf.Tensor | list[Any], key: tf.Tensor, number: int) -> tf.Tensor:
    """Return numbers drawn uniformly from [0, 1), float32, a function of the key and the number.

    key: [1] uint64. number: the upper half of Philox's counter; the lower half counts the drawn blocks, so that
    different numbers give different draws.
    """
    counter = tf.constant([0, number], tf.uint64)
    return tf.raw_ops.StatelessRandomUniformV2(shape=shape, key=key, counter=counter, alg=PHILOX)


# One layer's state: [h, c] of an LSTM, [h] of a GRU, each [rows, units].
State = list[tf.Tensor]


def recurrent_layer(cell: str, inputs: int, units: int, precision: str = "float32") -> keras.layers.RNN:
    """Return an LSTM or GRU layer with weights of zeros, which satisfies the conditions of cuDNN's fused kernels.

    Sequences must be right-padded, with at least one token in each row. The layer itself does not use cuDNN: Keras
    would wherever the process sees a GPU, also for a model on the CPU.
    """
    layer_class = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[cell]
    layer = layer_class(
        units,
        return_sequences=True,
        return_state=True,
        use_cudnn=False,
        dtype=policy(precision),
        # The weights are drawn by `built_model`, or read from a checkpoint. Drawing orthogonal matrices here would take
        # longer than reading the checkpoint.
        kernel_initializer="zeros",
        recurrent_initializer="zeros",
    )
    layer.build((None, None, inputs))
    return layer


class Stack(keras.layers.Layer):
    """Recurrent layers, with dropout before each.

    settings.residual adds its inputs, before dropout, to the outputs of each layer but the first (Wu et al., 2016).
    layers: their number. inputs: the size of the input vectors. first_dropout: the number of the first `Dropout`.
    `lstm_sequence` computes them on packed tokens, else cuDNN on a GPU unless settings.plain_layers, else Keras.
    """

    def __init__(
        self,
        settings: ModelSettings,
        layers: int,
        inputs: int,
        units: int,
        first_dropout: int,
        precision: str = "float32",
        on_gpu: bool = False,
    ) -> None:
        super().__init__()
        sizes = [inputs, *[units] * (layers - 1)]
        self.recurrent = [recurrent_layer(settings.cell, size, units, precision) for size in sizes]
        numbers = range(first_dropout, first_dropout + layers)
        self.dropouts = [Dropout(settings.keep_prob, number) for number in numbers]
        self._settings = settings
        self._by_cudnn = on_gpu and not settings.plain_layers
        self.built = True  # otherwise Keras traces `call` to build the layer

    def call(
        self,
        inputs: tf.Tensor,
        initial: list[State],
        sequences: Sequences,
        key: tf.Tensor | None,
        last: bool = True,
    ) -> tuple[tf.Tensor, list[State]]:
        """inputs [tokens, features] or [rows, time, features] -> outputs alike, and the last states.

        The outputs at padding are undefined. The last states are those of each layer.

        initial: the first state of each layer. sequences: the lengths and indices of the rows. key: [1] uint64 draws
        the dropout masks; None: no dropout. last: whether the last states are used. If not, they are undefined, and
        cuDNN runs all rows to the same length, which is faster.
        """
        if not last:
            sequences = sequences._replace(mask=None)
            if self._by_cudnn:
                rows, time, _ = tf.unstack(tf.shape(inputs), num=3)
                lengths = tf.fill([rows], time)
                sequences = sequences._replace(packing=sequences.packing._replace(lengths=lengths))
        states: list[State] = []
        outputs = inputs
        for i, (layer, first) in enumerate(zip(self.recurrent, initial, strict=True)):
            of_layer, state = self._layer(layer, self.dropouts[i](outputs, key), first, sequences)
            outputs = outputs + of_layer if self._settings.residual and i > 0 else of_layer
            states.append(state)
        return outputs, states

    def zero_states(self, rows: tf.Tensor, dtype: tf.DType) -> list[State]:
        """Return a state of zeros for each layer. rows: scalar int32."""
        states_of_layer = 2 if self._settings.cell == "lstm" else 1
        zeros = tf.zeros([rows, self.recurrent[0].units], dtype)
        return [[zeros] * states_of_layer] * len(self.recurrent)

    def _layer(
        self,
        layer: keras.layers.RNN,
        inputs: tf.Tensor,
        initial: State,
        sequences: Sequences,
    ) -> tuple[tf.Tensor, State]:
        cell = layer.cell
        packing = sequences.packing
        weights = cell.kernel, cell.recurrent_kernel, cell.bias
        kernel, recurrent, bias = map(tf.convert_to_tensor, weights)
        if sequences.is_packed:
            h, c = initial
            outputs, *state = lstm_sequence(inputs, h, c, kernel, recurrent, bias, packing, layer.compute_dtype)
        elif self._by_cudnn:
            weights = kernel, recurrent, bias
            outputs, *state = cudnn_sequence(inputs, initial, *weights, packing.lengths, layer.compute_dtype)
        else:
            results = layer(inputs, initial_state=initial, mask=sequences.mask)
            outputs, *state = (tf.cast(x, inputs.dtype) for x in results)
        return outputs, state

    def step(self, inputs: tf.Tensor, states: list[State]) -> tuple[tf.Tensor, list[State]]:
        """Run one step without dropout: inputs [rows, features] -> outputs [rows, units], the state of each layer."""
        new_states: list[State] = []
        outputs = inputs
        for i, (layer, state) in enumerate(zip(self.recurrent, states, strict=True)):
            results, new_state = layer.cell(outputs, state)
            results = tf.cast(results, inputs.dtype)
            outputs = outputs + results if self._settings.residual and i > 0 else results
            new_states.append([tf.cast(x, inputs.dtype) for x in _as_list(new_state)])
        return outputs, new_states


def _as_list(state: Any) -> State:
    return list(state) if isinstance(state, (list, tuple)) else [state]


class Encoder(keras.layers.Layer):
    """A recurrent stack, or two stacks of rnn_size / 2 units that read in opposite directions."""

    def __init__(self, settings: ModelSettings, precision: str = "float32", on_gpu: bool = False) -> None:
        super().__init__()
        units = settings.rnn_size // 2 if settings.bidirectional else settings.rnn_size

        def stack(first_dropout: int) -> Stack:
            sizes = settings.num_layers, settings.embedding_size, units
            return Stack(settings, *sizes, first_dropout, precision, on_gpu)

        self.forward = stack(FORWARD_ENCODER)
        self.backward = stack(BACKWARD_ENCODER) if settings.bidirectional else None
        self._on_gpu = on_gpu
        self.built = True

    def call(self, embedded: tf.Tensor, sequences: Sequences, key: tf.Tensor | None) -> tuple[tf.Tensor, list[State]]:
        """embedded [tokens or rows, source, embedding] -> memory [rows, source, rnn_size], each layer's last state.

        embedded: in the layout of the ids. key: [1] uint64 draws the dropout masks; None: no dropout.
        """
        packed = sequences.is_packed
        packing = sequences.packing
        zeros = self.forward.zero_states(tf.size(packing.lengths), embedded.dtype)
        outputs, states = self.forward(embedded, zeros, sequences, key)
        if self.backward is not None:

            def reverse(x: tf.Tensor) -> tf.Tensor:
                """Reverse the real tokens. Padding stays on the right, as cuDNN requires."""
                return mirror(x, packing) if packed else tf.reverse_sequence(x, lengths, seq_axis=1)

            # From the mask, because packing.lengths would have to be copied to a GPU.
            lengths = tf.reduce_sum(tf.cast(sequences.mask, tf.int64), 1) if self._on_gpu else packing.lengths
            backward_outputs, backward_states = self.backward(reverse(embedded), zeros, sequences, key)
            outputs = joined(outputs, reverse(backward_outputs))
            states = joined_states(states, backward_states)
        return unpack(outputs, packing) if packed else outputs, states


def joined_states(forward: list[State], backward: list[State]) -> list[State]:
    """Join the units of two stacks' states, all of one size, at once: an operation for each would make a GPU wait."""
    pairs = [pair for of_layers in zip(forward, backward, strict=True) for pair in zip(*of_layers, strict=True)]
    parts = tf.stack([part for pair in pairs for part in pair], 1)  # [rows, 2 states, units]
    states = iter(tf.unstack(tf.reshape(parts, [-1, len(pairs), 2 * parts.shape[2]]), axis=1))
    return [[next(states) for _ in state] for state in forward]
