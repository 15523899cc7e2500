"""What every search shares: the step function's type and which tokens may come next."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# A nest of tensors whose first dimension is the row.
State = Any
# (state, ids [rows] int32) -> (logits [rows, vocabulary], state after these ids)
Step = Callable[[State, tf.Tensor], tuple[tf.Tensor, State]]


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The ids with a meaning to a search."""

    begin: int
    end: int
    pad: int
    never: tuple[int, ...]  # never generated: padding, the begin symbol, unknown characters


def log_probabilities(logits: tf.Tensor, tokens: Tokens, first: tf.Tensor) -> tf.Tensor:
    """[rows, vocabulary] logits -> log-probabilities over what may come next.

    tokens.never gets -inf, and so does the end at the first position (first: scalar bool): a reply
    is not empty. What is left is normalised again.
    """
    vocabulary = tf.shape(logits)[-1]
    barred = tf.reduce_any(tf.one_hot(tokens.never, vocabulary, on_value=True, off_value=False), axis=0)
    barred |= first & (tf.range(vocabulary) == tokens.end)
    return tf.nn.log_softmax(tf.where(barred, -float("inf"), tf.cast(logits, tf.float32)))
