"""Dropout whose mask is a function of a seed, so that each tower draws its own and no state chains them."""

import keras
import tensorflow as tf


class Dropout(keras.layers.Layer):
    """Keeps each unit with probability keep_prob and scales it by 1 / keep_prob.

    number: unlike that of every other dropout in the model: 100 and up in the encoder's forward
    stack, 200 in its backward stack, 300 in the decoder's, 400 before the projection.

    keras.layers.Dropout draws one mask for all replicas and orders explicit towers by its seed
    variable. Here the mask depends on the given seed and on this layer's number only.
    """

    def __init__(self, keep_prob: float, number: int) -> None:
        super().__init__()
        self.supports_masking = True
        self.rate = 1.0 - keep_prob
        self.number = number

    def call(self, inputs: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        """inputs: any shape. seed: [2] int32, or None when not training."""
        if seed is None or self.rate == 0.0:
            return inputs
        own = tf.random.experimental.stateless_fold_in(seed, self.number)
        return tf.nn.experimental.stateless_dropout(inputs, self.rate, own, rng_alg="philox")
