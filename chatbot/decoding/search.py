"""Search with one hypothesis a row. A `Pick` chooses each next id."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from chatbot.decoding.automaton import Automaton
from chatbot.decoding.processor import Prefix, Processor, process
from chatbot.decoding.step import Constraint, SpecialIds, State, Step, advanced

# (log_probs [rows, vocabulary] float32, position: scalar int32, 0 at the first id) -> the next ids [rows] int64.
# An id with log-probability -inf must not be picked.
Pick = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class Hypotheses(NamedTuple):
    """The hypothesis of each row before an id is added at `position`."""

    position: tf.Tensor  # scalar int32
    ids: tf.Tensor  # [rows, max_length] int64, padded
    last: tf.Tensor  # [rows] int64, the last id of each, or the begin symbol
    scores: tf.Tensor  # [rows] float32
    are_finished: tf.Tensor  # [rows] int64, 0 or 1
    automaton_states: tf.Tensor  # [rows] int64
    state: State
    processor_states: tuple[State, ...]

    @property
    def finished(self) -> tf.Tensor:
        """Whether each row is finished, [rows] bool."""
        return tf.cast(self.are_finished, tf.bool)

    def of_rows(self, rows: tf.Tensor) -> "Hypotheses":
        """Return the hypotheses of some rows, [rows] of any integer type."""
        selected = tf.nest.map_structure(lambda x: tf.gather(x, rows), self[1:])
        return Hypotheses(self.position, *selected)


@dataclasses.dataclass(frozen=True)
class Search:
    """Search with one hypothesis a row, which can stop at any position and go on from there.

    Greedy search and sampling differ in `pick` alone.

    automaton: which ids may be generated. processors: applied in order to the log-probabilities before `pick`.
    """

    step: Step
    special_ids: SpecialIds
    automaton: Automaton
    max_length: int
    pick: Pick
    processors: Sequence[Processor] = ()

    def start(self, state: State, rows: tf.Tensor) -> Hypotheses:
        """Return the hypotheses before the first id. state: the state before it. rows: scalar int32, their number."""
        return Hypotheses(
            position=tf.constant(0),
            ids=tf.fill([rows, self.max_length], np.int64(self.special_ids.pad)),
            last=tf.fill([rows], np.int64(self.special_ids.begin)),
            scores=tf.zeros([rows]),
            are_finished=tf.zeros([rows], tf.int64),
            automaton_states=tf.fill([rows], np.int64(len(self.automaton.allowed))),
            state=state,
            processor_states=tuple(processor.start for processor in self.processors),
        )

    def run(self, hypotheses: Hypotheses, until: tf.Tensor | int, check_interval: int | None = 1) -> Hypotheses:
        """Add ids up to position `until`, at most max_length, or until all rows are finished.

        check_interval: see `advanced`.
        """
        constraint = Constraint(self.automaton, self.special_ids.end, self.max_length)

        def advance(rows: Hypotheses) -> tuple[Hypotheses]:
            finished = rows.finished
            logits, state = self.step(rows.state, rows.last)
            log_probs = constraint.log_probabilities(logits, rows.automaton_states, rows.position)  # [rows, vocabulary]
            prefix = Prefix(rows.position, rows.ids, rows.last)
            log_probs, processor_states = process(self.processors, log_probs, prefix, rows.processor_states)
            picked = self.pick(log_probs, rows.position)  # [rows]
            last = tf.where(finished, np.int64(self.special_ids.pad), picked)
            at_position = tf.range(self.max_length) == rows.position  # [max_length]
            advanced = Hypotheses(
                position=rows.position + 1,
                ids=tf.where(at_position, last[:, None], rows.ids),
                last=last,
                scores=rows.scores + tf.where(finished, 0.0, tf.gather(log_probs, picked, batch_dims=1)),
                are_finished=tf.cast(finished | (last == self.special_ids.end), tf.int64),
                automaton_states=constraint.next_states(rows.automaton_states, picked),
                state=state,
                processor_states=processor_states,
            )
            return (advanced,)

        return advanced(advance, hypotheses, until, check_interval)


def search(
    step: Step,
    state: State,
    rows: tf.Tensor,
    special_ids: SpecialIds,
    automaton: Automaton,
    max_length: int,
    pick: Pick,
    processors: Sequence[Processor] = (),
) -> tuple[tf.Tensor, tf.Tensor]:
    """Generate the ids of each row, up to its end or to max_length.

    state: the state before the first id. rows: scalar int32, the number of rows. The others: as for `Search`.
    Returns ids [rows, 1, max_length] int64, padded with special_ids.pad, and scores [rows, 1] float32, the sums of the
    picked ids' log-probabilities in nats, after the processors. The shapes are those of beam search with one beam.
    """
    one_a_row = Search(step, special_ids, automaton, max_length, pick, processors)
    found = one_a_row.run(one_a_row.start(state, rows), max_length)
    return found.ids[:, None], found.scores[:, None]
