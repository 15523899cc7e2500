"""Types and functions that all searches share: the step function, special ids, which ids may follow one another."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from chatbot.decoding.automaton import Automaton, bounded

# In a loop on a GPU, int32 and bool are in the host's memory. So what changes with each id is int64 or float32, but for
# the position, by which the host decides how long a loop runs.

# What changes with each id: a nest of tensors whose first dimension is the hypothesis. Beam search keeps its best
# hypotheses by a gather over all of it, so what belongs to the question is a part of the step instead.
State = Any
# (state, ids [hypotheses] int64) -> (logits [hypotheses, vocabulary], the state after these ids)
Step = Callable[[State, tf.Tensor], tuple[tf.Tensor, State]]
# The hypotheses of a search, with their `position`, scalar int32, and whether each row is `finished`, [rows] bool.
Rows = TypeVar("Rows", bound=Any)


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """The ids that a search treats differently from all others."""

    begin: int  # the input of the first step
    end: int  # finishes a row
    pad: int  # follows the end


class Constraint:
    """An automaton for sequences of 1 to max_length ids, whose states are tensors.

    Its tables become constants of each graph that uses them: a GPU would have to copy a table that enters a loop.

    Each state must lead to one that allows the end symbol. A state that allows it needs another allowed id, too, by
    which it stays in such a state.
    """

    def __init__(self, automaton: Automaton, end: int, max_length: int) -> None:
        limits = bounded(automaton, end, max_length)
        self.start, self._last, self._most = limits.start, limits.last, len(limits.in_time) - 1
        self._allowed = np.concatenate(limits.in_time)  # [ids left * states, vocabulary]
        self._next_states = limits.next_states.astype(np.int64)

    def log_probabilities(self, logits: tf.Tensor, states: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Return the log-probabilities of the next id, [rows, vocabulary] float32, in nats.

        Ids that are not allowed have -inf. Also not allowed are ids after which the sequence could not end in time. The
        probabilities of the other ids sum to 1.

        logits: [rows, vocabulary], of any float type. states: [rows] int64. position: scalar int32, 0 at the first id.
        """
        left = tf.minimum(self._last - position, self._most)
        row_of_state_0 = tf.cast(left * (self.start + 1), tf.int64)
        allowed = tf.gather(self._allowed, row_of_state_0 + states)  # [rows, vocabulary]
        return tf.nn.log_softmax(tf.where(allowed, tf.cast(logits, tf.float32), -float("inf")))

    def next_states(self, states: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Return the states after these ids, in the shape of both: states and ids int64."""
        return tf.gather_nd(self._next_states, tf.stack([states, ids], axis=-1))


def repeated(state: State, times: tf.Tensor | int) -> State:
    """Return a state with each row as many times, one after another."""

    def of_tensor(x: tf.Tensor) -> tf.Tensor:
        # tf.repeat computes sizes on a GPU, for which the host would wait.
        return tf.gather(x, tf.cast(tf.range(tf.shape(x)[0] * times) // times, tf.int64))

    return tf.nest.map_structure(of_tensor, state)


def advanced(
    advance: Callable[[Rows], tuple[Rows]], hypotheses: Rows, until: tf.Tensor | int, check_interval: int | None
) -> Rows:
    """Return the hypotheses at position `until`, or earlier if all rows are finished.

    advance: adds an id to each; a finished row stays as it is.
    check_interval: the number of ids between two checks whether all rows are finished. The host of a GPU waits at each
    check until all ids before it are computed. None: no checks.
    """

    def advance_to(end: tf.Tensor | int, hypotheses: Rows) -> tuple[Rows]:
        result: tuple[Rows] = tf.while_loop(lambda rows: rows.position < end, advance, (hypotheses,))
        return result

    def advance_unchecked(hypotheses: Rows) -> tuple[Rows]:
        return advance_to(tf.minimum(hypotheses.position + check_interval, until), hypotheses)

    def unfinished(rows: Rows) -> tf.Tensor:
        return (rows.position < until) & ~tf.reduce_all(rows.finished)

    if check_interval is None:
        (hypotheses,) = advance_to(until, hypotheses)
    else:
        body = advance if check_interval == 1 else advance_unchecked
        (hypotheses,) = tf.while_loop(unfinished, body, (hypotheses,))
    return hypotheses
