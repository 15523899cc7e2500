"""Dropout whose mask is a function of a key."""

from typing import Any

import keras
import tensorflow as tf

from chatbot.model.packing import Packing, rows_of_tokens

PHILOX = 1  # the number of the generator in TensorFlow (Salmon et al., 2011)

# The numbers of the dropouts of a model. Those of a stack's layers follow its first; those of its recurrent weights
# follow RECURRENT plus its first.
FORWARD_ENCODER, BACKWARD_ENCODER, DECODER, PROJECTION, TOKEN_TYPES, RECURRENT = 100, 200, 300, 400, 500, 1000
# The number of the draws of scheduled sampling, for `uniform`.
SCHEDULED_SAMPLING = 600


class Dropout(keras.layers.Layer):
    """Keeps each unit with probability keep_prob and scales it by 1 / keep_prob (Srivastava et al., 2014).

    keras.layers.Dropout draws one mask for all replicas, and its seed variable makes towers run one after another.
    Here the mask depends only on the given key and on this layer's number.

    number: unique in the model. variational: draw one mask for all tokens of a row (Gal and Ghahramani, 2016).
    """

    def __init__(self, keep_prob: float, number: int, variational: bool = False) -> None:
        super().__init__()
        self.supports_masking = True
        self.rate = 1.0 - keep_prob
        self.number = number
        self._variational = variational
        self.built = True  # otherwise Keras 3.12, the last for Python 3.10, reads the shape of each None in a packing

    def call(self, inputs: tf.Tensor, key: tf.Tensor | None, packing: Packing | None = None) -> tf.Tensor:
        """inputs of any shape -> the same shape. key: [1] uint64; None returns the inputs, as outside training.

        Variational dropout takes [tokens, features] or [rows, time, features], and their packing.
        """
        if key is None or self.rate == 0.0:
            return inputs

        @tf.custom_gradient
        def run(inputs: tf.Tensor) -> tuple[tf.Tensor, Any]:
            scale = self._scale(inputs, key, packing)
            return inputs * scale, lambda gradient: gradient * scale

        return run(inputs)

    def step_scales(self, steps: tf.Tensor, rows: tf.Tensor, features: int, key: tf.Tensor) -> tf.Tensor:
        """Return the factors of inputs that come step by step, [steps, rows, features] float32."""
        if not self._variational:
            return scales([steps, rows, features], key, self.number, self.rate, tf.float32)
        scale = scales([rows, features], key, self.number, self.rate, tf.float32)
        return tf.tile(scale[None], [steps, 1, 1])

    def _scale(self, inputs: tf.Tensor, key: tf.Tensor, packing: Packing | None) -> tf.Tensor:
        """Return the factors of the inputs: 0 or 1 / keep_prob."""
        if not self._variational:
            return scales(tf.shape(inputs), key, self.number, self.rate, inputs.dtype)
        assert packing is not None
        rows = tf.shape(packing.lengths)[0]
        scale = scales([rows, inputs.shape[-1]], key, self.number, self.rate, inputs.dtype)  # [rows, features]
        if inputs.shape.rank == 2:
            return tf.gather(scale, rows_of_tokens(packing))  # [tokens, features]
        return scale[:, None]  # [rows, 1, features]


class TokenTypeDropout(keras.layers.Layer):
    """Embedding dropout: drops all occurrences of a token in a batch (Gal and Ghahramani, 2016; Merity et al., 2018).

    Source and target have the same mask, which is a function of the key and the id. The output projection is not
    dropped.
    """

    def __init__(self, keep_prob: float, vocabulary_size: int) -> None:
        super().__init__()
        self.rate = 1.0 - keep_prob
        self._vocabulary_size = vocabulary_size

    def call(self, embedded: tf.Tensor, ids: tf.Tensor, key: tf.Tensor | None) -> tf.Tensor:
        """embedded [..., embedding], the rows of ids [...] -> the same shape. key: [1] uint64; None: no dropout."""
        if key is None or self.rate == 0.0:
            return embedded
        scale = scales([self._vocabulary_size], key, TOKEN_TYPES, self.rate, embedded.dtype)
        return embedded * tf.gather(scale, ids)[..., None]


def scales(shape: tf.Tensor | list[Any], key: tf.Tensor, number: int, rate: float, dtype: tf.DType) -> tf.Tensor:
    """Return the factors of dropout: 0 with probability `rate`, else 1 / (1 - rate)."""
    kept = uniform(shape, key, number) >= rate
    return tf.cast(kept, dtype) * (1.0 / (1.0 - rate))


def uniform(shape: tf.Tensor | list[Any], key: tf.Tensor, number: int) -> tf.Tensor:
    """Return numbers drawn uniformly from [0, 1), float32, a function of the key and the number.

    key: [1] uint64. number: the upper half of Philox's counter; the lower half counts the drawn blocks, so that
    different numbers give different draws.
    """
    counter = tf.constant([0, number], tf.uint64)
    return tf.raw_ops.StatelessRandomUniformV2(shape=shape, key=key, counter=counter, alg=PHILOX)
