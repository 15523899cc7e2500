"""Processors: functions that change the log-probabilities of the next id by the ids before it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from chatbot.decoding.step import State


class Prefix(NamedTuple):
    """The ids of each hypothesis before the next one."""

    position: tf.Tensor  # scalar int32, the number of ids
    ids: tf.Tensor  # [hypotheses, max_length] int64, padded
    last: tf.Tensor  # [hypotheses] int64, the last id of each, or the begin symbol


class Processor(NamedTuple):
    """A function of log-probabilities, and its state before the first id.

    apply: (log_probs [hypotheses, vocabulary] float32, prefix, state) -> (log_probs, the next state). An id of
    log-probability -inf is not allowed: it keeps -inf, and each hypothesis keeps an id that is allowed. The
    log-probabilities need not be normalised.

    start: a nest of tensors whose first dimension is the row, as the `State` of a step; () without a state.
    """

    apply: Callable[[tf.Tensor, Prefix, State], tuple[tf.Tensor, State]]
    start: State = ()


def stateless(function: Callable[[tf.Tensor, Prefix], tf.Tensor]) -> Processor:
    """Return the processor of a function (log_probs, prefix) -> log_probs."""
    return Processor(lambda log_probs, prefix, state: (function(log_probs, prefix), state))


def process(
    processors: Sequence[Processor], log_probs: tf.Tensor, prefix: Prefix, states: Sequence[State]
) -> tuple[tf.Tensor, tuple[State, ...]]:
    """Apply the processors in order. Returns the log-probabilities and the next state of each processor."""
    after = []
    for processor, state in zip(processors, states, strict=True):
        log_probs, state = processor.apply(log_probs, prefix, state)
        after.append(state)
    return log_probs, tuple(after)


def unless_none_is_left(forbidden: tf.Tensor, log_probs: tf.Tensor) -> tf.Tensor:
    """Return the log-probabilities after some ids were forbidden; as before where no id would be left.

    forbidden, log_probs: [hypotheses, vocabulary], after and before.
    """
    is_left = tf.reduce_max(forbidden, axis=-1, keepdims=True) > -float("inf")  # [hypotheses, 1]
    return tf.where(is_left, forbidden, log_probs)
