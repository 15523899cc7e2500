"""What the layers of a Transformer consist of beside attention: normalisation, products and activations."""

from typing import Any

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.operations import matmul

EPSILON = 1e-6


class Normalisation(keras.layers.Layer):
    """Vectors with mean 0 and variance 1, times a gain, plus a shift (Ba et al., 2016)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gain = self.add_weight(shape=(size,), initializer="ones", name="gain")
        self.shift = self.add_weight(shape=(size,), initializer="zeros", name="shift")
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[..., size] -> the same shape."""

        @tf.custom_gradient
        def run(x: tf.Tensor, gain: tf.Tensor, shift: tf.Tensor) -> tuple[tf.Tensor, Any]:
            centred = x - tf.reduce_mean(x, -1, keepdims=True)
            rate = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + EPSILON)
            normal = centred * rate

            def gradient(d_result: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
                others = [*range(len(x.shape) - 1)]
                d_gain, d_shift = tf.reduce_sum(d_result * normal, others), tf.reduce_sum(d_result, others)
                d_normal = d_result * gain
                parallel = normal * tf.reduce_mean(d_normal * normal, -1, keepdims=True)
                d_centred = d_normal - tf.reduce_mean(d_normal, -1, keepdims=True) - parallel
                return d_centred * rate, d_gain, d_shift

            return normal * gain + shift, gradient

        return run(x, tf.convert_to_tensor(self.gain), tf.convert_to_tensor(self.shift))


class Product(keras.layers.Layer):
    """x W + b.

    Queries, keys and values have no bias b. That of keys would change no weight of the attention, so that its gradient
    would be rounding error, which Adam scales up to a whole step, different on each number of towers.
    """

    def __init__(self, inputs: int, outputs: int, precision: str, *, parts: int = 1, bias: bool = True) -> None:
        """parts: the products, equal in size and side by side, that W consists of; see `built_model`."""
        super().__init__()
        self.kernel = self.add_weight(shape=(inputs, outputs), initializer="zeros", name="kernel")
        self.kernel.parts = parts
        self.bias = self.add_weight(shape=(outputs,), initializer="zeros", name="bias") if bias else None
        self._precision = precision
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[vectors, inputs] -> [vectors, outputs]."""
        product = matmul(x, tf.convert_to_tensor(self.kernel), self._precision)
        return product if self.bias is None else tf.nn.bias_add(product, tf.convert_to_tensor(self.bias))


class FeedForward(keras.layers.Layer):
    """Normalisation -> product -> SiLU -> product."""

    def __init__(self, settings: ModelSettings, precision: str) -> None:
        super().__init__()
        size, hidden = settings.embedding_size, settings.feed_forward_size
        self.normalise = Normalisation(size)
        self.widen = Product(size, hidden, precision)
        self.narrow = Product(hidden, size, precision)
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[vectors, embedding] -> the same shape."""
        # Rounding turns single units of a ReLU on or off, and Adam makes whole steps of that: towers would drift apart.
        return self.narrow(silu(self.widen(self.normalise(x))))


@tf.custom_gradient
def silu(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Return x sigmoid(x). TensorFlow's multiplies by a factor of 1 as well, and computes the sigmoid twice."""
    gate = tf.sigmoid(x)
    result = x * gate
    return result, lambda d_result: d_result * (gate + result * (1 - gate))
