"""Copying from the question: at each position, a decoder can generate a token, or copy a token or a character.

The design follows pointer-generator networks (See et al., 2017) and CopyNet (Gu et al., 2016).
"""

from typing import NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.model.attention import LuongAttention
from chatbot.model.operations import POLICIES, matmul, scatter_add

# The actions at each position: generate a token, copy a token of the question, or copy a character of such a token.
GENERATE, COPY_TOKEN, COPY_CHARACTER = range(3)
# The initial biases of the gate. With them, an untrained model generates a token with probability 0.9.
INITIAL_GATE_BIAS = (2.9, 0.0, 0.0)
# Smaller probabilities are raised to this value to keep logarithms finite.
MIN_PROBABILITY = 1e-30


class Copies(NamedTuple):
    """The copying probabilities at each position. A position is a token of a reply or, in a search, a hypothesis."""

    log_actions: tf.Tensor  # [positions, 3] float32, log-probabilities of GENERATE, COPY_TOKEN, COPY_CHARACTER
    weights: tf.Tensor  # [positions, source] float32, the probability of copying from each token of the question


NO_COPIES: tuple[()] = ()  # used if the model does not copy


class Copying(LuongAttention):
    """The attention that chooses which token to copy, and the gate that chooses between generating and copying.

    Args:
        units: The size of the decoder's outputs and of the encoder's outputs.
        precision: The precision of products; see `chatbot.model.operations`.
    """

    def __init__(self, units: int, precision: str = "float32") -> None:
        super().__init__(units, precision)
        self.gate = keras.layers.Dense(
            len(INITIAL_GATE_BIAS),
            bias_initializer=lambda shape, dtype: tf.constant(INITIAL_GATE_BIAS, dtype),
            dtype=POLICIES[precision],
        )
        self.gate.build((None, 2 * units))

    def log_actions(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the log-probabilities of the actions, [positions, 3].

        Args:
            outputs: The decoder's outputs, concatenated with their contexts, [positions, 2 units].
        """
        logits = matmul(outputs, tf.convert_to_tensor(self.gate.kernel), self._precision)
        return tf.nn.log_softmax(logits + tf.convert_to_tensor(self.gate.bias))


def copy_log_probabilities(copies: Copies, question: tf.Tensor, targets: tf.Tensor, spellings: tf.Tensor) -> tf.Tensor:
    """Return the log-probability of copying each target, at least log(MIN_PROBABILITY).

    Args:
        copies: The copying probabilities at each position.
        question: The ids of each position's question, [positions, source] int64.
        targets: The target ids, [positions] int64.
        spellings: The result of `spelling_table`, as a tensor.

    Returns:
        The log-probabilities, [positions] float32.
    """
    is_token = tf.cast(question == targets[:, None], tf.float32)  # [positions, source]
    spelled = tf.gather(spellings, question)  # [positions, source, characters]
    is_same = tf.cast(spelled == targets[:, None, None], tf.float32)  # [positions, source, characters]
    is_character = tf.reduce_sum(is_same * _character_weights(spelled), -1)  # [positions, source]
    gates = tf.exp(copies.log_actions)  # [positions, 3]
    copied = gates[:, COPY_TOKEN, None] * is_token + gates[:, COPY_CHARACTER, None] * is_character
    # keepdims is faster on a GPU, because without it the gradient needs a shape on the host.
    total = tf.reduce_sum(copies.weights * copied, -1, keepdims=True)  # [positions, 1]
    return tf.math.log(tf.maximum(tf.squeeze(total, -1), MIN_PROBABILITY))


def mix_copies(copies: Copies, generated: tf.Tensor, copied: tf.Tensor) -> tf.Tensor:
    """Return the total log-probability of each target, generated or copied, [positions].

    Args:
        copies: The copying probabilities at each position.
        generated: The log-probability of each target according to the softmax, [positions].
        copied: The result of `copy_log_probabilities`, [positions].
    """
    return copied + tf.nn.softplus(copies.log_actions[:, GENERATE] + generated - copied)


def copying_log_softmax(
    logits: tf.Tensor, copies: Copies, question: tf.Tensor, spellings: tf.Tensor, on_gpu: bool
) -> tf.Tensor:
    """Return the total log-probability of each token of the vocabulary, generated or copied.

    Args:
        logits: The logits of generating each token, [positions, vocabulary].
        copies: The copying probabilities at each position.
        question: The ids of each position's question, [positions, source] int64.
        spellings: The result of `spelling_table`, as a tensor.
        on_gpu: Whether the computation runs on a GPU.

    Returns:
        The log-probabilities, [positions, vocabulary] float32.
    """
    gates = tf.exp(copies.log_actions)  # [positions, 3]
    spelled = tf.gather(spellings, question)  # [positions, source, characters]
    by_character = (gates[:, COPY_CHARACTER, None] * copies.weights)[..., None] * _character_weights(spelled)
    by_token = (gates[:, COPY_TOKEN, None] * copies.weights)[..., None]  # [positions, source, 1]
    probabilities = tf.concat([by_token, by_character], -1)  # [positions, source, 1 + characters]
    ids = tf.concat([question[..., None], tf.maximum(spelled, 0)], -1)  # [positions, source, 1 + characters]
    positions = tf.broadcast_to(tf.cast(tf.range(tf.shape(ids)[0]), tf.int64)[:, None, None], tf.shape(ids))
    generated = gates[:, GENERATE, None] * tf.nn.softmax(tf.cast(logits, tf.float32))  # [positions, vocabulary]
    total = scatter_add(generated, tf.stack([positions, ids], -1), probabilities, on_gpu)
    return tf.math.log(tf.maximum(total, MIN_PROBABILITY))


def _character_weights(spelled: tf.Tensor) -> tf.Tensor:
    """Give each of a token's n characters the weight 1 / n, and padding the weight 0, [..., characters] float32."""
    real = tf.cast(spelled >= 0, tf.float32)
    return real / tf.reduce_sum(real, -1, keepdims=True)


def spelling_table(spellings: list[list[int]]) -> npt.NDArray[np.int64]:
    """Return the character ids of each token, [vocabulary, characters], padded with -1.

    Args:
        spellings: The ids of the characters of each token, at least one per token.
    """
    table = np.full((len(spellings), max(map(len, spellings))), -1, np.int64)
    for row, ids in enumerate(spellings):
        table[row, : len(ids)] = ids
    return table
