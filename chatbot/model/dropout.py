"""Dropout whose mask is a function of a seed."""

import keras
import tensorflow as tf


class Dropout(keras.layers.Layer):
    """Keeps each unit with probability keep_prob and scales it by 1 / keep_prob (Srivastava et al., 2014).

    keras.layers.Dropout draws one mask for all replicas, and its seed variable makes towers run one after another.
    Here the mask depends only on the given seed and on this layer's number.

    number: unique in the model: 100 and up in the encoder's forward stack, 200 in
    its backward stack, 300 in the decoder's stack, 400 before the projection.
    """

    def __init__(self, keep_prob: float, number: int) -> None:
        super().__init__()
        self.supports_masking = True
        self.rate = 1.0 - keep_prob
        self.number = number

    def call(self, inputs: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        """inputs of any shape -> the same shape. seed: [2] int32; None returns the inputs, as outside training."""
        if seed is None or self.rate == 0.0:
            return inputs
        layer_seed = tf.random.experimental.stateless_fold_in(seed, self.number)
        return tf.nn.experimental.stateless_dropout(inputs, self.rate, layer_seed, rng_alg="philox")
