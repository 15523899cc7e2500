"""Types and functions that all searches share: the step function, special ids, which ids may follow one another."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.decoding.automaton import Automaton, bounded

# What changes with each id: a nest of tensors whose first dimension is the hypothesis. Beam search keeps its best
# hypotheses by a gather over all of it, so what belongs to the question is a part of the step instead.
State = Any
# (state, ids [hypotheses] int32) -> (logits [hypotheses, vocabulary], the state after these ids)
Step = Callable[[State, tf.Tensor], tuple[tf.Tensor, State]]


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """The ids that a search treats differently from all others."""

    begin: int  # the input of the first step
    end: int  # finishes a row
    pad: int  # follows the end


class Constraint:
    """An automaton for sequences of 1 to max_length ids, whose states are tensors.

    Each state must lead to one that allows the end symbol. A state that allows it needs another allowed id, too, by
    which it stays in such a state.
    """

    def __init__(self, automaton: Automaton, end: int, max_length: int) -> None:
        limits = bounded(automaton, end, max_length)
        self.start, self._last, self._most = limits.start, limits.last, len(limits.in_time) - 1
        self._allowed = tf.constant(np.concatenate(limits.in_time))  # [ids left * states, vocabulary]
        self._next_states = tf.constant(limits.next_states)

    def log_probabilities(self, logits: tf.Tensor, states: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Return the log-probabilities of the next id, [rows, vocabulary] float32, in nats.

        Ids that are not allowed have -inf. Also not allowed are ids after which the sequence could not end in time. The
        probabilities of the other ids sum to 1.

        logits: [rows, vocabulary], of any float type. states: [rows] int32. position: scalar int32, 0 at the first id.
        """
        left = tf.minimum(self._last - position, self._most)
        allowed = tf.gather(self._allowed, left * (self.start + 1) + states)  # [rows, vocabulary]
        return tf.nn.log_softmax(tf.where(allowed, tf.cast(logits, tf.float32), -float("inf")))

    def next_states(self, states: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Return the states after these ids, in the shape of both: states and ids int32."""
        return tf.gather_nd(self._next_states, tf.stack([states, ids], axis=-1))
