"""Attention of decoder outputs over the encoder's memory.

All target positions are computed at once in training, and one at a time in decoding.
"""

import keras
import tensorflow as tf

from chatbot.model.matmul import matmul, policy


class Attention(keras.layers.Layer):
    """The weighted mean of the memory: context = softmax(score(query, memory)) memory. Subclasses define the score."""

    def __init__(self, units: int, precision: str = "float32") -> None:
        super().__init__()
        self.key = keras.layers.Dense(units, use_bias=False, dtype=policy(precision))
        self.key.build((None, None, units))
        self._units, self._precision = units, precision
        self.built = True

    def keys(self, memory: tf.Tensor) -> tf.Tensor:
        """memory [rows, source, units] -> keys [rows, source, units], computed once for each question."""
        flat = tf.reshape(memory, [-1, self._units])  # [rows * source, units]
        keys = matmul(flat, tf.convert_to_tensor(self.key.kernel), self._precision)
        return tf.reshape(keys, tf.shape(memory))

    def scores(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """queries [rows, target, units], keys [rows, source, units] -> scores [rows, target, source]."""
        raise NotImplementedError

    def call(self, queries: tf.Tensor, keys: tf.Tensor, memory: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """queries [rows, target, units], keys and memory [rows, source, units] -> context [rows, target, units].

        mask: [rows, source] bool, True at real tokens; padding gets no weight.
        """
        scores = self.scores(queries, keys)  # [rows, target, source]
        lowest = tf.constant(scores.dtype.min, scores.dtype)
        weights = tf.nn.softmax(tf.where(mask[:, None, :], scores, lowest))
        return tf.matmul(weights, memory)


class LuongAttention(Attention):
    """score(q, m) = q W m (Luong et al., 2015, "general")."""

    def scores(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        return tf.matmul(queries, keys, transpose_b=True)


class BahdanauAttention(Attention):
    """score(q, m) = v tanh(W q + U m) (Bahdanau et al., 2015)."""

    def __init__(self, units: int, precision: str = "float32") -> None:
        super().__init__(units, precision)
        self.query = keras.layers.Dense(units, dtype=policy(precision))
        self.score = keras.layers.Dense(1, use_bias=False)
        for layer in (self.query, self.score):
            layer.build((None, None, units))

    def scores(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        projected = tf.cast(self.query(queries), queries.dtype)  # [rows, target, units]
        sums = projected[:, :, None, :] + keys[:, None, :, :]  # [rows, target, source, units]
        return tf.squeeze(self.score(tf.tanh(sums)), axis=-1)
