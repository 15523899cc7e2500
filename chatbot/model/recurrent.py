"""Recurrent layers: dropout, a stack of LSTM or GRU layers, and the recurrent encoder."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.fast_recurrent import cudnn_sequence, lstm_sequence
from chatbot.model.operations import POLICIES, concat_features, with_gradient
from chatbot.model.sequences import Sequences, mirror, unpack

PHILOX = 1  # TensorFlow's constant for the random generator Philox (Salmon et al., 2011)

# The number of the first dropout layer in the encoder, the decoder and so on. A Transformer's layers get the numbers
# after it.
FORWARD_ENCODER = 100
BACKWARD_ENCODER = 200
DECODER = 300
PROJECTION = 400


class Dropout(keras.layers.Layer):
    """Dropout (Srivastava et al., 2014) with masks that depend only on a random key and the layer's number.

    keras.layers.Dropout has a seed variable, which would prevent several devices from running in parallel.

    Args:
        keep_prob: The probability of keeping a unit. Kept units are scaled by 1 / keep_prob.
        number: The number of the layer, unique in the model.
    """

    def __init__(self, keep_prob: float, number: int) -> None:
        super().__init__()
        self.supports_masking = True
        self.rate = 1.0 - keep_prob
        self.number = number

    def call(self, inputs: tf.Tensor, key: tf.Tensor | None) -> tf.Tensor:
        """Apply dropout to a tensor of any shape.

        Args:
            inputs: The tensor.
            key: The random key, [1] uint64, or None for no dropout.
        """
        if key is None or self.rate == 0.0:
            return inputs
        return apply_mask(inputs, self.draw_mask(tf.shape(inputs), key))

    def draw_masks(self, sizes: Sequence[int], inputs: tf.Tensor, key: tf.Tensor | None) -> Sequence[tf.Tensor | None]:
        """Draw masks with the shape of `inputs`, but these sizes of the last axis. Without a key, each mask is None."""
        if key is None or self.rate == 0.0:
            return [None] * len(sizes)
        shape = tf.concat([tf.shape(inputs)[:-1], [sum(sizes)]], 0)
        masks: list[tf.Tensor] = tf.split(self.draw_mask(shape, key), sizes, -1)
        return masks

    def draw_mask(self, shape: tf.Tensor | list[Any], key: tf.Tensor) -> tf.Tensor:
        """Draw a float32 mask, whose elements are 0 or 1 / keep_prob."""
        return tf.where(uniform(shape, key, self.number) >= self.rate, 1.0 / (1.0 - self.rate), 0.0)


def apply_mask(inputs: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Multiply a tensor by a dropout mask of the same shape, if there is one."""
    if mask is None:
        return inputs
    return with_gradient(lambda x: x * mask, lambda gradient: gradient * mask, inputs)


def uniform(shape: tf.Tensor | list[Any], key: tf.Tensor, number: int) -> tf.Tensor:
    """Draw float32 numbers uniformly from [0, 1). They depend only on the arguments.

    Args:
        shape: The shape of the result.
        key: The random key, [1] uint64.
        number: The upper half of Philox's counter. Different numbers give different draws.
    """
    counter = tf.constant([0, number], tf.uint64)
    return tf.raw_ops.StatelessRandomUniformV2(shape=shape, key=key, counter=counter, alg=PHILOX)


# The state of a layer: [h, c] of an LSTM, [h] of a GRU, each [rows, units].
State = list[tf.Tensor]


def recurrent_layer(cell: str, inputs: int, units: int, precision: str = "float32") -> keras.layers.RNN:
    """Create an LSTM or GRU layer whose options are compatible with cuDNN, and whose weights are zeros.

    Sequences must be padded on the right and have at least one token. The layer itself does not use cuDNN, because
    Keras would use it even for a model on the CPU if the process sees a GPU.

    Args:
        cell: "lstm" or "gru".
        inputs: The size of the inputs.
        units: The size of the outputs.
        precision: The precision of products; see `chatbot.model.operations`.
    """
    layer_class = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[cell]
    layer = layer_class(
        units,
        return_sequences=True,
        return_state=True,
        use_cudnn=False,
        dtype=POLICIES[precision],
        # The weights are set later, by `build_model` or from a checkpoint. Drawing orthogonal matrices here would take
        # longer than reading the checkpoint.
        kernel_initializer="zeros",
        recurrent_initializer="zeros",
    )
    layer.build((None, None, inputs))
    return layer


class Stack(keras.layers.Layer):
    """A stack of recurrent layers, with dropout before each layer.

    With `settings.residual`, the input of each layer except the first is added to its output (Wu et al., 2016).

    Packed inputs are computed by `lstm_sequence`. Padded inputs are computed by cuDNN on a GPU, or by Keras on a CPU
    and with `settings.plain_layers`.

    Args:
        settings: The sizes and options of the model.
        units: The size of the outputs.
        dropout: The number of the `Dropout`, which draws the masks of all layers at once.
        precision: The precision of products; see `chatbot.model.operations`.
        on_gpu: Whether the computation runs on a GPU.
    """

    def __init__(
        self,
        settings: ModelSettings,
        units: int,
        dropout: int,
        precision: str = "float32",
        on_gpu: bool = False,
    ) -> None:
        super().__init__()
        self._sizes = [settings.embedding_size, *[units] * (settings.num_layers - 1)]
        self.recurrent = [recurrent_layer(settings.cell, size, units, precision) for size in self._sizes]
        self.dropout = Dropout(settings.keep_prob, dropout)
        self._settings = settings
        self._by_cudnn = on_gpu and not settings.plain_layers
        if self._by_cudnn and settings.cell == "lstm":
            for layer in self.recurrent:  # Training stores these matrices as `lstm_params` needs them.
                layer.cell.kernel.is_transposed = layer.cell.recurrent_kernel.is_transposed = True
        self.built = True  # Otherwise, Keras would trace `call` to build the layer.

    def call(
        self,
        inputs: tf.Tensor,
        initial: list[State],
        sequences: Sequences,
        key: tf.Tensor | None,
        needs_states: bool = True,
    ) -> tuple[tf.Tensor, list[State]]:
        """Run all layers over whole sequences.

        Args:
            inputs: The packed inputs [tokens, features], or padded inputs [rows, time, features].
            initial: The initial state of each layer.
            sequences: The sequences, for their lengths and indices.
            key: The random key of the dropout masks, [1] uint64, or None for no dropout.
            needs_states: Whether to compute the final states. Without them, cuDNN is faster, because it can run all
                rows to the same length.

        Returns:
            The outputs in the layout of the inputs, undefined at padding, and the final state of each layer. The states
            are undefined unless `needs_states` is True.
        """
        if not needs_states:
            sequences = sequences._replace(mask=None)
            if self._by_cudnn:
                rows, time, _ = tf.unstack(tf.shape(inputs), num=3)
                lengths = tf.fill([rows], time)
                sequences = sequences._replace(packing=sequences.packing._replace(lengths=lengths))
        states: list[State] = []
        x = inputs
        masks = self.dropout.draw_masks(self._sizes, inputs, key)
        for i, (layer, mask, first) in enumerate(zip(self.recurrent, masks, initial, strict=True)):
            outputs, state = self._run_layer(layer, apply_mask(x, mask), first, sequences)
            x = x + outputs if self._settings.residual and i > 0 else outputs
            states.append(state)
        return x, states

    def zero_states(self, rows: tf.Tensor, dtype: tf.DType) -> list[State]:
        """Return a zero state for each layer. The number of rows is a scalar int32 tensor."""
        tensors = 2 if self._settings.cell == "lstm" else 1
        zeros = tf.zeros([rows, self.recurrent[0].units], dtype)
        return [[zeros] * tensors] * len(self.recurrent)

    def _run_layer(
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
        """Run one step without dropout.

        Args:
            inputs: The inputs, [rows, features].
            states: The state of each layer.

        Returns:
            The outputs, [rows, units], and the new state of each layer.
        """
        new_states: list[State] = []
        outputs = inputs
        for i, (layer, state) in enumerate(zip(self.recurrent, states, strict=True)):
            results, new_state = layer.cell(outputs, state)
            results = tf.cast(results, inputs.dtype)
            outputs = outputs + results if self._settings.residual and i > 0 else results
            new_states.append([tf.cast(x, inputs.dtype) for x in new_state])
        return outputs, new_states


class Encoder(keras.layers.Layer):
    """The recurrent encoder: one stack, or two stacks of rnn_size / 2 units that read in opposite directions."""

    def __init__(self, settings: ModelSettings, precision: str = "float32", on_gpu: bool = False) -> None:
        super().__init__()
        units = settings.rnn_size // 2 if settings.bidirectional else settings.rnn_size
        self.forward = Stack(settings, units, FORWARD_ENCODER, precision, on_gpu)
        self.backward = None
        if settings.bidirectional:
            self.backward = Stack(settings, units, BACKWARD_ENCODER, precision, on_gpu)
        self.built = True

    def call(self, embedded: tf.Tensor, sequences: Sequences, key: tf.Tensor | None) -> tuple[tf.Tensor, list[State]]:
        """Encode questions.

        Args:
            embedded: The embedded questions, [tokens, embedding] or [rows, source, embedding].
            sequences: The questions.
            key: The random key of the dropout masks, [1] uint64, or None for no dropout.

        Returns:
            The outputs, [rows, source, rnn_size], and the final state of each layer.
        """
        packing = sequences.packing
        zeros = self.forward.zero_states(tf.size(packing.lengths), embedded.dtype)
        outputs, states = self.forward(embedded, zeros, sequences, key)
        if self.backward is not None:
            reversed_outputs, backward_states = self.backward(mirror(embedded, packing), zeros, sequences, key)
            outputs = concat_features(outputs, mirror(reversed_outputs, packing))
            states = concat_states(states, backward_states)
        return unpack(outputs, packing) if sequences.is_packed else outputs, states


def concat_states(forward: list[State], backward: list[State]) -> list[State]:
    """Concatenate the states of two stacks along the units, in a single operation, which is faster on a GPU."""
    pairs = [pair for layers in zip(forward, backward, strict=True) for pair in zip(*layers, strict=True)]
    parts = tf.stack([part for pair in pairs for part in pair], 1)  # [rows, 2 states, units]
    states = iter(tf.unstack(tf.reshape(parts, [-1, len(pairs), 2 * parts.shape[2]]), axis=1))
    return [[next(states) for _ in state] for state in forward]
