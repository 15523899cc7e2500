"""Copying from the question: a decoder generates a token, or copies a token of the question or a character of one.

The mixture follows pointer-generator networks (See et al., 2017) and CopyNet (Gu et al., 2016). It comes after the
recurrent layers and the attention, so that these run over a whole reply at once.
"""

from typing import NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.model.attention import LuongAttention
from chatbot.model.operations import matmul, policy, scatter_add

# What a position does: it generates a token, copies a token of the question, or copies a character of a token.
GENERATE, COPY_TOKEN, COPY_CHARACTER = range(3)
# Before training, a position generates with probability 0.9.
START = (2.9, 0.0, 0.0)
# Probabilities below this are taken for it, so that their logarithm is finite.
SMALLEST = 1e-30


class Copies(NamedTuple):
    """Where each position copies from, [positions, ...]. A position is a token of a reply, or a hypothesis."""

    log_actions: tf.Tensor  # [positions, 3] float32, log-probabilities of GENERATE, COPY_TOKEN, COPY_CHARACTER
    weights: tf.Tensor  # [positions, source] float32, the probability of copying from each token of the question


NO_COPIES: tuple[()] = ()  # of a model that does not copy


class Copying(keras.layers.Layer):
    """Attention of its own over the question, and a gate. units: those of the decoder's outputs and of the memory."""

    def __init__(self, units: int, precision: str = "float32") -> None:
        super().__init__()
        self.attention = LuongAttention(units, precision)
        self.gate = keras.layers.Dense(
            len(START), bias_initializer=lambda shape, dtype: tf.constant(START, dtype), dtype=policy(precision)
        )
        self.gate.build((None, 2 * units))
        self._precision = precision
        self.built = True

    def keys(self, memory: tf.Tensor) -> tf.Tensor:
        """memory [rows, source, units] -> keys [rows, source, units], computed once for each question."""
        return self.attention.keys(memory)

    def weights_of(self, outputs: tf.Tensor, keys: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """outputs [rows, target, units], keys [rows, source, units] -> weights [rows, target, source].

        mask: [rows, source] bool, True at real tokens; padding gets no weight.
        """
        return self.attention.weights_of(outputs, keys, mask)

    def log_actions(self, outputs: tf.Tensor) -> tf.Tensor:
        """[output; context] [positions, 2 units] -> log-probabilities of the actions, [positions, 3]."""
        logits = matmul(outputs, tf.convert_to_tensor(self.gate.kernel), self._precision)
        return tf.nn.log_softmax(logits + tf.convert_to_tensor(self.gate.bias))


def log_copied(copies: Copies, question: tf.Tensor, targets: tf.Tensor, spellings: tf.Tensor) -> tf.Tensor:
    """Return the log-probability of each target by copying, [positions] float32, at least log(SMALLEST).

    question: [positions, source] int64, the ids of each position's question. targets: [positions] int64. spellings: the
    tensor of `spelling_table`.
    """
    is_token = tf.cast(question == targets[:, None], tf.float32)  # [positions, source]
    spelled = tf.gather(spellings, question)  # [positions, source, characters]
    is_same = tf.cast(spelled == targets[:, None, None], tf.float32)
    is_character = tf.reduce_sum(is_same * _shares(spelled), -1)  # [positions, source]
    gates = tf.exp(copies.log_actions)
    copied = gates[:, COPY_TOKEN, None] * is_token + gates[:, COPY_CHARACTER, None] * is_character
    # Without keepdims, the host of a GPU would wait for a shape in the gradient.
    total = tf.reduce_sum(copies.weights * copied, -1, keepdims=True)  # [positions, 1]
    return tf.math.log(tf.maximum(tf.squeeze(total, -1), SMALLEST))


def mixture(copies: Copies, generated: tf.Tensor, copied: tf.Tensor) -> tf.Tensor:
    """Return the log-probability of each target, generated or copied, [positions].

    generated: the targets' log-probabilities by the softmax, [positions]. copied: from `log_copied`.
    """
    return copied + tf.nn.softplus(copies.log_actions[:, GENERATE] + generated - copied)


def with_copies(
    logits: tf.Tensor, copies: Copies, question: tf.Tensor, spellings: tf.Tensor, on_gpu: bool
) -> tf.Tensor:
    """Return the log-probability of each token, generated or copied, [positions, vocabulary] float32.

    logits: [positions, vocabulary]. The other arguments are those of `log_copied`.
    """
    gates = tf.exp(copies.log_actions)  # [positions, 3]
    spelled = tf.gather(spellings, question)  # [positions, source, characters]
    by_character = (gates[:, COPY_CHARACTER, None] * copies.weights)[..., None] * _shares(spelled)
    by_token = (gates[:, COPY_TOKEN, None] * copies.weights)[..., None]
    probabilities = tf.concat([by_token, by_character], -1)  # [positions, source, 1 + characters]
    ids = tf.concat([question[..., None], tf.maximum(spelled, 0)], -1)
    positions = tf.broadcast_to(tf.cast(tf.range(tf.shape(ids)[0]), tf.int64)[:, None, None], tf.shape(ids))
    generated = gates[:, GENERATE, None] * tf.nn.softmax(tf.cast(logits, tf.float32))
    total = scatter_add(generated, tf.stack([positions, ids], -1), probabilities, on_gpu)
    return tf.math.log(tf.maximum(total, SMALLEST))


def _shares(spelled: tf.Tensor) -> tf.Tensor:
    """Return each character's share of its token, [..., characters] float32: 1 / characters, 0 where there is none."""
    real = tf.cast(spelled >= 0, tf.float32)
    return real / tf.reduce_sum(real, -1, keepdims=True)


def spelling_table(spellings: "list[list[int]]") -> npt.NDArray[np.int64]:
    """Return the ids of each token's characters, [vocabulary, characters], -1 beyond a token's last one.

    spellings: for each id the ids of its characters, at least one.
    """
    table = np.full((len(spellings), max(map(len, spellings))), -1, np.int64)
    for row, ids in enumerate(spellings):
        table[row, : len(ids)] = ids
    return table
