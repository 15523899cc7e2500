"""Types and functions that all searches share: the step function, special ids, log-probabilities."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# A nest of tensors whose first dimension is the row.
State = Any
# (state, ids [rows] int32) -> (logits [rows, vocabulary], the state after these ids)
Step = Callable[[State, tf.Tensor], tuple[tf.Tensor, State]]


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """The ids that a search treats differently from all others."""

    begin: int  # the input of the first step
    end: int  # finishes a row
    pad: int  # follows the end
    forbidden: tuple[int, ...]  # never generated


def log_probabilities(logits: tf.Tensor, special_ids: SpecialIds, first: tf.Tensor) -> tf.Tensor:
    """Return the log-probabilities of the next id, [rows, vocabulary] float32, in nats.

    Forbidden ids have -inf, and so has the end at the first position, because a reply is not empty. The
    probabilities of the other ids sum to 1.

    logits: [rows, vocabulary], of any float type. first: scalar bool, whether this is the first position.
    """
    vocabulary = tf.shape(logits)[-1]
    forbidden = tf.one_hot(special_ids.forbidden, vocabulary, on_value=True, off_value=False)
    forbidden = tf.reduce_any(forbidden, axis=0)  # [vocabulary]
    forbidden |= first & (tf.range(vocabulary) == special_ids.end)
    return tf.nn.log_softmax(tf.where(forbidden, -float("inf"), tf.cast(logits, tf.float32)))
