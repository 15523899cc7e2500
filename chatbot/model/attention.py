"""Attention of decoder outputs over the encoder's memory, padding excluded.

Both take all target positions at once in training, and a single one in decoding.
"""

import keras
import tensorflow as tf

from chatbot.model.product import policy


class LuongAttention(keras.layers.Layer):
    """score(q, m) = q W m (Luong et al., 2015, "general")."""

    def __init__(self, units: int, precision: str = "float32") -> None:
        super().__init__()
        self.key = keras.layers.Dense(units, use_bias=False, dtype=policy(precision))
        self.key.build((None, None, units))
        self.built = True

    def keys(self, memory: tf.Tensor) -> tf.Tensor:
        """memory [rows, source, units] -> keys [rows, source, units], computed once a question."""
        return tf.cast(self.key(memory), memory.dtype)

    def call(
        self, queries: tf.Tensor, keys: tf.Tensor, memory: tf.Tensor, mask: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """queries [rows, target, units], mask [rows, source] -> context [rows, target, units], attention weights."""
        scores = tf.matmul(queries, keys, transpose_b=True)  # [rows, target, source]
        return attend(scores, memory, mask)


class BahdanauAttention(keras.layers.Layer):
    """score(q, m) = v tanh(W q + U m) (Bahdanau et al., 2015)."""

    def __init__(self, units: int, precision: str = "float32") -> None:
        super().__init__()
        self.key = keras.layers.Dense(units, use_bias=False, dtype=policy(precision))
        self.query = keras.layers.Dense(units, dtype=policy(precision))
        self.score = keras.layers.Dense(1, use_bias=False)
        for layer in (self.key, self.query, self.score):
            layer.build((None, None, units))
        self.built = True

    def keys(self, memory: tf.Tensor) -> tf.Tensor:
        """memory [rows, source, units] -> keys [rows, source, units], computed once a question."""
        return tf.cast(self.key(memory), memory.dtype)

    def call(
        self, queries: tf.Tensor, keys: tf.Tensor, memory: tf.Tensor, mask: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """queries [rows, target, units], mask [rows, source] -> context [rows, target, units], attention weights."""
        asked = tf.cast(self.query(queries), queries.dtype)
        sums = asked[:, :, None, :] + keys[:, None, :, :]  # [rows, target, source, units]
        scores = tf.squeeze(self.score(tf.tanh(sums)), axis=-1)  # [rows, target, source]
        return attend(scores, memory, mask)


def attend(scores: tf.Tensor, memory: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """scores [rows, target, source] -> context [rows, target, units], weights [rows, target, source]."""
    lowest = tf.constant(scores.dtype.min, scores.dtype)
    weights = tf.nn.softmax(tf.where(mask[:, None, :], scores, lowest))
    return tf.matmul(weights, memory), weights
