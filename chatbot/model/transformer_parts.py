"""The parts of a Transformer other than attention: normalisation, linear layers, activations and positions."""

from collections.abc import Callable, Collection
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from chatbot.config.form import GELU, GELU_TANH, LAYER, RELATIVE, RELU, SILU, TABLE, WAVES, Form
from chatbot.config.model import ModelSettings
from chatbot.model.attention import VectorLayout
from chatbot.model.operations import matmul, size_on_device, with_gradient

# The maximum wavelength of sinusoidal positions, in units of 2 pi tokens.
MAX_WAVELENGTH = 10_000.0
# The row of the first position in a table of learned positions. As in BART, the rows before it are not used.
POSITION_OFFSET = 2


class Normalisation(keras.layers.Layer):
    """Layer normalisation (Ba et al., 2016) or root mean square normalisation (Zhang and Sennrich, 2019).

    Root mean square normalisation neither subtracts the mean nor adds a shift.

    Args:
        size: The size of the vectors.
        form: The variant of the Transformer, which defines `norm`, `epsilon` and `norm_first`.
    """

    def __init__(self, size: int, form: Form) -> None:
        super().__init__()
        self.gain = self.add_weight(shape=(size,), initializer="ones", name="gain")
        self.shift = self.add_weight(shape=(size,), initializer="zeros", name="shift") if form.norm == LAYER else None
        self._epsilon = form.epsilon
        self._norm_first = form.norm_first
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Normalise vectors [..., size]."""
        gain = tf.convert_to_tensor(self.gain)
        is_centred = self.shift is not None

        @tf.custom_gradient
        def run(x: tf.Tensor, gain: tf.Tensor, *shift: tf.Tensor) -> tuple[tf.Tensor, Any]:
            centred = x - tf.reduce_mean(x, -1, keepdims=True) if is_centred else x
            rate = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + self._epsilon)
            normal = centred * rate

            def gradient(d_result: tf.Tensor) -> tuple[tf.Tensor, ...]:
                others = [*range(len(x.shape) - 1)]
                d_normal = d_result * gain
                parallel = normal * tf.reduce_mean(d_normal * normal, -1, keepdims=True)
                mean = tf.reduce_mean(d_normal, -1, keepdims=True) if is_centred else 0.0
                d_shift = [tf.reduce_sum(d_result, others)] if is_centred else []
                return (d_normal - mean - parallel) * rate, tf.reduce_sum(d_result * normal, others), *d_shift

            return normal * gain + shift[0] if is_centred else normal * gain, gradient

        return run(x, gain, *([tf.convert_to_tensor(self.shift)] if is_centred else []))

    def before(self, x: tf.Tensor) -> tf.Tensor:
        """Return the input of a sublayer: the residual stream x, which is normalised in pre-norm models."""
        return self(x) if self._norm_first else x

    def after(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Add the output y of a sublayer to the residual stream x. Post-norm models normalise the sum."""
        total = tf.add_n([x, y])  # The gradient of + would be slower, because it computes shapes.
        return total if self._norm_first else self(total)


class Linear(keras.layers.Layer):
    """A linear layer, x W + b.

    The gradient of the bias of attention keys is set to 0. This bias does not change attention weights, so its true
    gradient is 0, but Adam would scale rounding errors up to full steps.

    Args:
        inputs: The size of the inputs.
        outputs: The size of the outputs.
        precision: The precision of products; see `chatbot.model.operations`.
        parts: The number of matrices of equal size that are concatenated in W, such as queries, keys and values.
        bias: Whether to add b.
        keys: The indices of the parts that project to attention keys.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        precision: str,
        *,
        parts: int = 1,
        bias: bool = True,
        keys: Collection[int] = (),
    ) -> None:
        super().__init__()
        self.kernel = self.add_weight(shape=(inputs, outputs), initializer="zeros", name="kernel")
        self.kernel.parts = parts
        self.bias = self.add_weight(shape=(outputs,), initializer="zeros", name="bias") if bias else None
        self._precision = precision
        is_key = np.repeat([part in keys for part in range(parts)], outputs // parts)
        self._is_key = is_key if is_key.any() else None
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Apply the layer to vectors [vectors, inputs]. The result has shape [vectors, outputs]."""
        product = matmul(x, tf.convert_to_tensor(self.kernel), self._precision)
        if self.bias is None:
            return product
        bias = tf.convert_to_tensor(self.bias)
        if self._is_key is not None:
            bias = tf.where(self._is_key, tf.stop_gradient(bias), bias)
        return tf.nn.bias_add(product, bias)


class FeedForward(keras.layers.Layer):
    """The feed-forward sublayer: a linear layer, an activation that can be gated, and another linear layer."""

    def __init__(self, settings: ModelSettings, form: Form, precision: str) -> None:
        super().__init__()
        size = settings.embedding_size
        hidden = settings.feed_forward_size
        self.normalise = Normalisation(size, form)
        parts = 2 if form.gated else 1
        self.widen = Linear(size, parts * hidden, precision, parts=parts, bias=form.biases)
        self.narrow = Linear(hidden, size, precision, bias=form.biases)
        self._activate = ACTIVATIONS[form.activation]
        self._gated = form.gated
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Map the residual stream to the sublayer's output. Both have shape [vectors, embedding]."""
        wide = self.widen(self.normalise.before(x))
        if self._gated:
            wide, gate = tf.split(wide, 2, -1)
            return self.narrow(self._activate(wide) * gate)
        return self.narrow(self._activate(wide))


@tf.custom_gradient
def silu(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Return x sigmoid(x). TensorFlow's version is slower, because it computes the sigmoid twice."""
    gate = tf.sigmoid(x)
    result = x * gate
    return result, lambda d_result: d_result * (gate + result * (1 - gate))


# Models that are trained from scratch use SiLU, which makes training more reproducible than ReLU. With ReLU, rounding
# errors switch units on or off, and Adam turns these differences into full steps.
ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    SILU: silu,
    GELU: lambda x: x * (0.5 + 0.5 * tf.math.erf(x * 0.5**0.5)),  # tf.nn.gelu uses erfc, which ONNX lacks
    GELU_TANH: lambda x: tf.nn.gelu(x, approximate=True),
    RELU: tf.nn.relu,
}


class Positions(keras.layers.Layer):
    """Position embeddings or position biases of attention scores, depending on `form.positions`.

    Args:
        settings: The sizes of the model.
        form: The variant of the Transformer, which defines how positions are represented.
        both_directions: Whether tokens also attend to later tokens.
    """

    def __init__(self, settings: ModelSettings, form: Form, both_directions: bool) -> None:
        super().__init__()
        size = settings.embedding_size
        self._form = form
        self._both_directions = both_directions
        self._size = size
        if form.positions == TABLE:
            shape = (POSITION_OFFSET + form.rows, size)
            self.table = self.add_weight(shape=shape, initializer="zeros", name="positions")
        if form.positions == RELATIVE:
            shape = (form.buckets, settings.heads)
            self.distances = self.add_weight(shape=shape, initializer="zeros", name="distances")
        self.normalise = Normalisation(size, form) if form.embedding_norm else None
        self.built = True

    def call(self, embedded: tf.Tensor, layout: VectorLayout) -> tf.Tensor:
        """Add position embeddings to whole sequences.

        Args:
            embedded: The embedded tokens, packed [tokens, size] or padded [rows, time, size].
            layout: The layout of the vectors.

        Returns:
            The sums, [vectors, size].
        """
        vectors = self._position_vectors(layout.positions)  # [time, size]
        if vectors is not None and layout.packing is not None:
            vectors = lookup(vectors, layout.packing.to_packed % size_on_device(layout.positions))  # [tokens, size]
        return tf.reshape(self._add(embedded, vectors), [-1, self._size])

    def step(self, embedded: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Add position embeddings to single tokens.

        Args:
            embedded: The embedded tokens, [vectors, size].
            positions: The position of each token in its sequence, [vectors] float32.

        Returns:
            The sums, [vectors, size].
        """
        return self._add(embedded, self._position_vectors(positions))

    def _position_vectors(self, positions: tf.Tensor) -> tf.Tensor | None:
        """Return the position embeddings, [positions, size], or None if the model has none."""
        if self._form.positions == TABLE:
            rows = tf.minimum(tf.cast(positions, tf.int32), self._form.rows - 1)  # Padding can exceed the table.
            return lookup(tf.convert_to_tensor(self.table), rows + POSITION_OFFSET)
        return sinusoids(positions, self._size) if self._form.positions == WAVES else None

    def _add(self, embedded: tf.Tensor, vectors: tf.Tensor | None) -> tf.Tensor:
        x = embedded * self._size**0.5 if self._form.scaled_embedding else embedded
        x = x if vectors is None else x + vectors
        return x if self.normalise is None else self.normalise(x)

    def bias(self, queries: tf.Tensor, keys: tf.Tensor) -> list[tf.Tensor]:
        """Return the position bias of attention scores as a list, which is empty if the model has no bias.

        Args:
            queries: The positions of the queries, [rows, target, 1] float32.
            keys: The positions of the keys, [source] float32.

        Returns:
            An empty list, or a list with one tensor of shape [rows, heads, target, source].
        """
        if self._form.positions != RELATIVE:
            return []
        buckets = distance_buckets(keys - queries, self._form, self._both_directions)  # [rows, target, source]
        bias = lookup(tf.convert_to_tensor(self.distances), buckets)  # [rows, target, source, heads]
        return [tf.transpose(bias, [0, 3, 1, 2])]


def lookup(table: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Look up rows of a table. Unlike the gradient of tf.gather, the gradient of this function is dense.

    Args:
        table: The table, [rows, size].
        rows: The indices of the rows, integers of any shape [...].

    Returns:
        The rows, [..., size].
    """

    def gradient(d_result: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(d_result, [-1, table.shape[-1]])
        return tf.math.unsorted_segment_sum(flat, tf.reshape(rows, [-1]), tf.shape(table)[0])

    return with_gradient(lambda x: tf.gather(x, rows), gradient, table)


def distance_buckets(distances: tf.Tensor, form: Form, both_directions: bool) -> tf.Tensor:
    """Return the index of the bucket of each distance, int32 (T5, Raffel et al., 2020).

    Each short distance has its own bucket. Several longer distances share a bucket.

    Args:
        distances: The position of the key minus the position of the query, float32.
        form: The variant of the Transformer, which defines `buckets` and `farthest`.
        both_directions: Whether tokens also attend to later tokens.
    """
    buckets = form.buckets
    first = tf.zeros_like(distances)
    if both_directions:
        buckets //= 2
        first = tf.where(distances > 0, float(buckets), 0.0)
        distances = tf.abs(distances)
    else:
        distances = tf.maximum(-distances, 0.0)
    exact = buckets // 2
    octaves = tf.math.log(tf.maximum(distances, 1.0) / exact) / np.log(form.farthest / exact)
    shared = tf.minimum(exact + tf.floor(octaves * (buckets - exact)), buckets - 1.0)
    return tf.cast(first + tf.where(distances < exact, distances, shared), tf.int32)


def sinusoids(positions: tf.Tensor, size: int) -> tf.Tensor:
    """Return sines and cosines of positions, with wavelengths from 2 pi to 2 pi MAX_WAVELENGTH.

    Args:
        positions: The positions, [positions] float32.
        size: The size of a vector, an even number.

    Returns:
        The vectors, [positions, size] float32.
    """
    rates = MAX_WAVELENGTH ** -(np.arange(size // 2) / (size // 2))
    angles = positions[:, None] * tf.constant(rates.astype(np.float32))  # [positions, size / 2]
    return tf.concat([tf.sin(angles), tf.cos(angles)], -1)
