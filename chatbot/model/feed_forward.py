"""What the layers of a Transformer consist of beside attention: normalisation, products and activations."""

from collections.abc import Callable, Collection
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from chatbot.config.form import GELU, GELU_TANH, LAYER, RELU, SILU, Form
from chatbot.config.model import ModelSettings
from chatbot.model.operations import matmul


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
