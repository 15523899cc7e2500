"""What the layers of a Transformer consist of beside attention: normalisation, products, activations and positions."""

from collections.abc import Callable, Collection
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from chatbot.config.form import GELU, GELU_TANH, LAYER, RELATIVE, RELU, SILU, TABLE, WAVES, Form
from chatbot.config.model import ModelSettings
from chatbot.model.attention import Layout
from chatbot.model.operations import matmul, size_on_device, with_gradient

# The longest wave of the positions, in tokens.
LONGEST_WAVE = 10_000.0
# Of the first place in a table; BART has no use for the rows before it.
FIRST_ROW = 2


class Normalisation(keras.layers.Layer):
    """Vectors with mean 0 and variance 1, times a gain, plus a shift (Ba et al., 2016), by form.norm.

    Without the shift, the mean stays, and the mean square is 1 (Zhang and Sennrich, 2019).
    """

    def __init__(self, size: int, form: Form) -> None:
        super().__init__()
        self.gain = self.add_weight(shape=(size,), initializer="ones", name="gain")
        self.shift = self.add_weight(shape=(size,), initializer="zeros", name="shift") if form.norm == LAYER else None
        self._epsilon = form.epsilon
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[..., size] -> the same shape."""
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


class Product(keras.layers.Layer):
    """x W + b.

    The bias of keys changes no weight of the attention, so that its gradient is rounding error, which Adam would scale
    up to a whole step, different on each number of towers: where there is one, its gradient is 0.
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
        """parts: the products, equal in size and side by side, that W consists of; see `built_model`. keys: the numbers
        of those that are keys, whose bias stays as it is."""
        super().__init__()
        self.kernel = self.add_weight(shape=(inputs, outputs), initializer="zeros", name="kernel")
        self.kernel.parts = parts
        self.bias = self.add_weight(shape=(outputs,), initializer="zeros", name="bias") if bias else None
        self._precision = precision
        is_key = np.repeat([part in keys for part in range(parts)], outputs // parts)
        self._is_key = is_key if is_key.any() else None
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[vectors, inputs] -> [vectors, outputs]."""
        product = matmul(x, tf.convert_to_tensor(self.kernel), self._precision)
        if self.bias is None:
            return product
        bias = tf.convert_to_tensor(self.bias)
        if self._is_key is not None:
            bias = tf.where(self._is_key, tf.stop_gradient(bias), bias)
        return tf.nn.bias_add(product, bias)


class FeedForward(keras.layers.Layer):
    """Product -> activation, gated by another product or not -> product."""

    def __init__(self, settings: ModelSettings, form: Form, precision: str) -> None:
        super().__init__()
        size = settings.embedding_size
        hidden = settings.feed_forward_size
        self.normalise = Normalisation(size, form)
        parts = 2 if form.gated else 1
        self.widen = Product(size, parts * hidden, precision, parts=parts, bias=form.biases)
        self.narrow = Product(hidden, size, precision, bias=form.biases)
        self._activate = ACTIVATIONS[form.activation]
        self._gated = form.gated
        self._normalises = form.norm_first
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[vectors, embedding] -> the same shape."""
        wide = self.widen(self.normalise(x) if self._normalises else x)
        if self._gated:
            wide, gate = tf.split(wide, 2, -1)
            return self.narrow(self._activate(wide) * gate)
        return self.narrow(self._activate(wide))


@tf.custom_gradient
def silu(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Return x sigmoid(x). TensorFlow's multiplies by a factor of 1 as well, and computes the sigmoid twice."""
    gate = tf.sigmoid(x)
    result = x * gate
    return result, lambda d_result: d_result * (gate + result * (1 - gate))


# From scratch it is SiLU: rounding turns single units of a ReLU on or off, and Adam makes whole steps of that, so that
# towers would drift apart.
ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    SILU: silu,
    GELU: lambda x: x * (0.5 + 0.5 * tf.math.erf(x * 0.5**0.5)),  # tf.nn.gelu's erfc is not in ONNX
    GELU_TANH: lambda x: tf.nn.gelu(x, approximate=True),
    RELU: tf.nn.relu,
}


class Positions(keras.layers.Layer):
    """Embeddings with the positions of their tokens, and the learned scores of distances, by form.positions.

    both_directions: whether a token sees those after it, too.
    """

    def __init__(self, settings: ModelSettings, form: Form, both_directions: bool) -> None:
        super().__init__()
        size = settings.embedding_size
        self._form = form
        self._both_directions = both_directions
        self._size = size
        if form.positions == TABLE:
            self.table = self.add_weight(shape=(FIRST_ROW + form.rows, size), initializer="zeros", name="positions")
        if form.positions == RELATIVE:
            shape = (form.buckets, settings.heads)
            self.distances = self.add_weight(shape=shape, initializer="zeros", name="distances")
        self.normalise = Normalisation(size, form) if form.embedding_norm else None
        self.built = True

    def call(self, embedded: tf.Tensor, layout: Layout) -> tf.Tensor:
        """embedded [tokens, size], packed, or [rows, time, size], by the layout -> [vectors, size]."""
        of_time = self._vectors(layout.places)
        if of_time is not None and layout.packing is not None:
            of_time = rows_of(of_time, layout.packing.to_packed % size_on_device(layout.places))
        return tf.reshape(self._sums(embedded, of_time), [-1, self._size])

    def of_places(self, embedded: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """embedded [vectors, size], the place of each in its sequence [vectors] float32 -> [vectors, size]."""
        return self._sums(embedded, self._vectors(places))

    def _vectors(self, places: tf.Tensor) -> tf.Tensor | None:
        """Return what is added to embeddings at places, [places, size]; None where nothing is."""
        if self._form.positions == TABLE:
            own = tf.minimum(tf.cast(places, tf.int32), self._form.rows - 1)  # padding may be beyond the last one
            return rows_of(tf.convert_to_tensor(self.table), own + FIRST_ROW)
        return waves(places, self._size) if self._form.positions == WAVES else None

    def _sums(self, embedded: tf.Tensor, vectors: tf.Tensor | None) -> tf.Tensor:
        x = embedded * self._size**0.5 if self._form.scaled_embedding else embedded
        x = x if vectors is None else x + vectors
        return x if self.normalise is None else self.normalise(x)

    def scores(self, here: tf.Tensor, there: tf.Tensor) -> list[tf.Tensor]:
        """Return what is added to the scores of attention: [rows, heads, target, source], or nothing.

        here [rows, target, 1], there [source]: places, float32.
        """
        if self._form.positions != RELATIVE:
            return []
        buckets = buckets_of(there - here, self._form, self._both_directions)
        scores = rows_of(tf.convert_to_tensor(self.distances), buckets)
        return [tf.transpose(scores, [0, 3, 1, 2])]


def rows_of(table: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """table [rows, size], numbers [...] int32 -> [..., size]. The gradient of tf.gather is of single rows."""

    def gradient(d_rows: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(d_rows, [-1, table.shape[-1]])
        return tf.math.unsorted_segment_sum(flat, tf.reshape(numbers, [-1]), tf.shape(table)[0])

    return with_gradient(lambda rows: tf.gather(rows, numbers), gradient, table)


def buckets_of(distances: tf.Tensor, form: Form, both_directions: bool) -> tf.Tensor:
    """Return the bucket of each distance (Raffel et al., 2020), int32: short ones have their own, longer ones share.

    distances: of what is seen, less than 0 before the place; float32.
    """
    buckets = form.buckets
    first = tf.zeros_like(distances)
    if both_directions:
        buckets //= 2
        first = tf.where(distances > 0, float(buckets), 0.0)
        distances = tf.abs(distances)
    else:
        distances = tf.maximum(-distances, 0.0)
    own = buckets // 2
    octaves = tf.math.log(tf.maximum(distances, 1.0) / own) / np.log(form.farthest / own)
    shared = tf.minimum(own + tf.floor(octaves * (buckets - own)), buckets - 1.0)
    return tf.cast(first + tf.where(distances < own, distances, shared), tf.int32)


def waves(positions: tf.Tensor, size: int) -> tf.Tensor:
    """Return sines and cosines of positions, [positions, size], with wavelengths from 2 pi to LONGEST_WAVE times that.

    positions: [positions] float32. size: even.
    """
    rates = LONGEST_WAVE ** -(np.arange(size // 2) / (size // 2))
    angles = positions[:, None] * tf.constant(rates.astype(np.float32))
    return tf.concat([tf.sin(angles), tf.cos(angles)], -1)
