"""Dropout whose mask is a function of a key."""

from typing import Any

import keras
import tensorflow as tf

PHILOX = 1  # the number of the generator in TensorFlow (Salmon et al., 2011)

# The numbers of the dropouts of a model. Those of a stack's layers follow its first.
FORWARD_ENCODER, BACKWARD_ENCODER, DECODER, PROJECTION = 100, 200, 300, 400


class Dropout(keras.layers.Layer):
    """Keeps each unit with probability keep_prob and scales it by 1 / keep_prob (Srivastava et al., 2014).

    keras.layers.Dropout draws one mask for all replicas, and its seed variable makes towers run one after another.
    Here the mask depends only on the given key and on this layer's number.

    number: unique in the model.
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

        @tf.custom_gradient
        def run(inputs: tf.Tensor) -> tuple[tf.Tensor, Any]:
            scale = self.scales(tf.shape(inputs), key)
            return inputs * scale, lambda gradient: gradient * scale

        return run(inputs)

    def scales(self, shape: tf.Tensor | list[Any], key: tf.Tensor) -> tf.Tensor:
        """Return the factors of inputs of this shape, float32: 0 or 1 / keep_prob."""
        kept = uniform(shape, key, self.number) >= self.rate
        return tf.cast(kept, tf.float32) * (1.0 / (1.0 - self.rate))


def uniform(shape: tf.Tensor | list[Any], key: tf.Tensor, number: int) -> tf.Tensor:
    """Return numbers drawn uniformly from [0, 1), float32, a function of the key and the number.

    key: [1] uint64. number: the upper half of Philox's counter; the lower half counts the drawn blocks, so that
    different numbers give different draws.
    """
    counter = tf.constant([0, number], tf.uint64)
    return tf.raw_ops.StatelessRandomUniformV2(shape=shape, key=key, counter=counter, alg=PHILOX)
