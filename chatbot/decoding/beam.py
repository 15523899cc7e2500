"""Beam search with the length and coverage penalties of Wu et al. (2016), and in groups (Vijayakumar et al., 2018)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from chatbot.decoding.automaton import Automaton
from chatbot.decoding.processor import Prefix, Processor, process
from chatbot.decoding.step import Constraint, SpecialIds, State, Step, advanced, repeated


class Beams(NamedTuple):
    """The hypotheses before an id is added at `position`."""

    position: tf.Tensor  # scalar int32
    ids: tf.Tensor  # [rows, beams, max_length] int64, padded
    log_probs: tf.Tensor  # [rows, beams] float32, of all ids up to here
    lengths: tf.Tensor  # [rows, beams] int64, the end counted
    bonus: Any  # [rows, beams] float32, () without one
    are_finished: tf.Tensor  # [rows, beams] int64, 0 or 1
    automaton_states: tf.Tensor  # [rows, beams] int64
    scores: tf.Tensor  # [rows, beams] float32
    state: State  # each tensor [rows * beams, ...]
    processor_states: tuple[State, ...]  # as state

    @property
    def finished(self) -> tf.Tensor:
        """Whether all hypotheses of a row are finished, [rows] bool."""
        return tf.reduce_all(tf.cast(self.are_finished, tf.bool), axis=1)

    def of_rows(self, rows: tf.Tensor) -> "Beams":
        """Return the hypotheses of some rows, [rows] of any integer type."""
        *of_row, state, processor_states = self[1:]
        beams = self.ids.shape[1]
        hypotheses = tf.reshape(rows[:, None] * beams + np.arange(beams, dtype=rows.dtype.as_numpy_dtype), [-1])
        selected = tf.nest.map_structure(lambda x: tf.gather(x, rows), of_row)
        states = tf.nest.map_structure(lambda x: tf.gather(x, hypotheses), (state, processor_states))
        return Beams(self.position, *selected, *states)


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """Beam search, which can stop at any position and go on from there.

    A hypothesis is finished by the end symbol. It then keeps its score and competes with the others until all are
    finished or have max_length ids. Hypotheses are ranked by log-probability / ((5 + length) / 6) ** length_penalty;
    the end symbol counts in the length.

    automaton: which ids may be generated. processors: applied in order to the log-probabilities of the next id.

    bonus: what is added to the score of an unfinished hypothesis, and stays when it is finished, by the state after its
    last step: [hypotheses] float32. The coverage penalty is one.

    groups: the hypotheses are divided into groups of equal size, which are searched one after another at each position.
    To be kept, an id loses `diversity` nats for each hypothesis of an earlier group that has it at this position. The
    scores do not contain this loss.
    """

    step: Step
    special_ids: SpecialIds
    automaton: Automaton
    max_length: int
    beam_size: int
    length_penalty: float
    processors: Sequence[Processor] = ()
    bonus: Callable[[State], tf.Tensor] | None = None
    groups: int = 1
    diversity: float = 0.0

    def start(self, state: State, rows: tf.Tensor) -> Beams:
        """Return the hypotheses before the first id. state: the state before it. rows: scalar int32, their number."""
        beam_size = self.beam_size
        # All beams of a group start equal. Only the first may be extended, or each hypothesis would appear several
        # times.
        first_alone = [0.0] + [-float("inf")] * (beam_size // self.groups - 1)
        log_probs = tf.tile(tf.constant([first_alone * self.groups]), [rows, 1])
        return Beams(
            position=tf.constant(0),
            ids=tf.fill([rows, beam_size, self.max_length], np.int64(self.special_ids.pad)),
            log_probs=log_probs,
            lengths=tf.zeros([rows, beam_size], tf.int64),
            bonus=() if self.bonus is None else tf.zeros([rows, beam_size]),
            are_finished=tf.zeros([rows, beam_size], tf.int64),
            automaton_states=tf.fill([rows, beam_size], np.int64(len(self.automaton.allowed))),
            scores=log_probs,
            state=repeated(state, beam_size),
            processor_states=tuple(repeated(processor.start, beam_size) for processor in self.processors),
        )

    def run(self, beams: Beams, until: tf.Tensor | int, check_interval: int | None = 1) -> Beams:
        """Add ids up to position `until`, at most max_length, or until all hypotheses are finished.

        check_interval: see `advanced`.
        """
        constraint = Constraint(self.automaton, self.special_ids.end, self.max_length)

        def advance(beams: Beams) -> tuple[Beams]:
            return (self._advanced(beams, constraint),)

        beams = advanced(advance, beams, until, check_interval)
        scores = beams.log_probs / _penalty(beams.lengths, self.length_penalty)
        return beams._replace(scores=scores if self.bonus is None else scores + beams.bonus)

    def best_first(self, ids: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the ids [rows, beams, max_length] and the scores [rows, beams] of each row, the best first."""
        if self.groups == 1:
            return ids, scores  # top_k has returned the best first
        scores, order = tf.math.top_k(scores, self.beam_size)
        return tf.gather(ids, order, batch_dims=1), scores

    def _advanced(self, beams: Beams, constraint: Constraint) -> Beams:
        position, finished = beams.position, tf.cast(beams.are_finished, tf.bool)
        max_length, special_ids = self.max_length, self.special_ids
        rows = tf.shape(finished)[0]
        last = tf.where(position == 0, np.int64(special_ids.begin), beams.ids[:, :, tf.maximum(position - 1, 0)])
        last = tf.reshape(last, [-1])  # [rows * beams]
        logits, state = self.step(beams.state, last)
        automaton_states = tf.reshape(beams.automaton_states, [-1])  # [rows * beams]
        log_probs = constraint.log_probabilities(logits, automaton_states, position)  # [rows * beams, vocabulary]
        prefix = Prefix(position, tf.reshape(beams.ids, [-1, max_length]), last)
        log_probs, processor_states = process(self.processors, log_probs, prefix, beams.processor_states)
        vocabulary = self.automaton.allowed.shape[1]
        log_probs = tf.reshape(log_probs, [rows, self.beam_size, vocabulary])
        # A finished hypothesis has one continuation: padding, at no cost.
        padding = np.where(np.arange(vocabulary) == special_ids.pad, 0, -np.inf).astype(np.float32)
        log_probs = tf.where(finished[:, :, None], padding, log_probs)
        log_probs = beams.log_probs[:, :, None] + log_probs  # of whole hypotheses
        lengths = beams.lengths + 1 - beams.are_finished
        added: Any = ()
        if self.bonus is not None:
            added = tf.where(finished, beams.bonus, tf.reshape(self.bonus(state), [rows, self.beam_size]))

        def ranks(part: slice, loss: tf.Tensor | None) -> tf.Tensor:
            """Return the ranks of all continuations of some hypotheses, [rows, hypotheses, vocabulary]."""
            values = log_probs[:, part] if loss is None else log_probs[:, part] - loss
            values /= penalty[:, part, None]
            return values if self.bonus is None else values + added[:, part, None]

        penalty = _penalty(lengths, self.length_penalty)
        size = self.beam_size // self.groups
        parent, next_ids = _continued(ranks, self.groups, size, vocabulary, special_ids.pad, self.diversity)

        def of_parent(x: tf.Tensor) -> tf.Tensor:
            return tf.gather(x, parent, batch_dims=1)

        best = parent * vocabulary + next_ids  # [rows, beams], flat over beams and ids
        log_probs = tf.gather(tf.reshape(log_probs, [rows, -1]), best, batch_dims=1)  # [rows, beams]
        automaton_states = constraint.next_states(of_parent(beams.automaton_states), next_ids)
        # An impossible hypothesis has any ids. It stays in a state that allows others, or its row would become NaN.
        automaton_states = tf.where(tf.math.is_inf(log_probs), np.int64(0), automaton_states)
        at_position = tf.range(max_length) == position  # [max_length]
        first = tf.cast(tf.range(rows) * self.beam_size, tf.int64)
        parent_rows = tf.reshape(first[:, None] + parent, [-1])  # [rows * beams]
        state, processor_states = tf.nest.map_structure(lambda x: tf.gather(x, parent_rows), (state, processor_states))
        return Beams(
            position=position + 1,
            ids=tf.where(at_position, next_ids[:, :, None], of_parent(beams.ids)),
            log_probs=log_probs,
            lengths=of_parent(lengths),
            bonus=tf.nest.map_structure(of_parent, added),
            are_finished=tf.cast(of_parent(finished) | (next_ids == special_ids.end), tf.int64),
            automaton_states=automaton_states,
            scores=beams.scores,
            state=state,
            processor_states=processor_states,
        )


def beam_search(
    step: Step,
    state: State,
    rows: tf.Tensor,
    special_ids: SpecialIds,
    automaton: Automaton,
    max_length: int,
    beam_size: int,
    length_penalty: float,
    processors: Sequence[Processor] = (),
    bonus: Callable[[State], tf.Tensor] | None = None,
    groups: int = 1,
    diversity: float = 0.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Generate beam_size hypotheses for each row.

    state: the state before the first id. rows: scalar int32, the number of rows. The others: as for `BeamSearch`.

    Returns ids [rows, beam_size, max_length] int64, padded with special_ids.pad, and scores [rows, beam_size] float32,
    the values above in nats, the best first. If fewer than beam_size hypotheses are possible, the others have score
    -inf.
    """
    search = BeamSearch(
        step, special_ids, automaton, max_length, beam_size, length_penalty, processors, bonus, groups, diversity
    )
    found = search.run(search.start(state, rows), max_length)
    return search.best_first(found.ids, found.scores)


def _continued(
    ranks: Callable[[slice, tf.Tensor | None], tf.Tensor],
    groups: int,
    group_size: int,
    vocabulary: int,
    pad: int,
    diversity: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the parents and the last ids of the best continuations of each group, both [rows, beams] int64.

    ranks: (the hypotheses of a group, the nats that each id loses [rows, 1, vocabulary]) -> the ranks of their
    continuations, [rows, group, vocabulary].
    """
    parents: list[tf.Tensor] = []
    next_ids: list[tf.Tensor] = []
    for group in range(groups):
        first = group * group_size
        loss = None
        if group:
            times = _times(tf.concat(next_ids, 1), vocabulary)
            times *= (np.arange(vocabulary) != pad).astype(np.float32)  # finished hypotheses may agree
            loss = diversity * times[:, None]
        flat = ranks(slice(first, first + group_size), loss)
        _, best = tf.math.top_k(tf.reshape(flat, [tf.shape(flat)[0], -1]), group_size)  # [rows, group]
        best = tf.cast(best, tf.int64)
        parents.append(first + best // vocabulary)
        next_ids.append(best % vocabulary)
    return (parents[0], next_ids[0]) if groups == 1 else (tf.concat(parents, 1), tf.concat(next_ids, 1))


def _times(ids: tf.Tensor, vocabulary: int) -> tf.Tensor:
    """Return how often a row has each id, [rows, vocabulary] float32. ids: [rows, number] int64."""
    rows = tf.broadcast_to(tf.cast(tf.range(tf.shape(ids)[0]), tf.int64)[:, None], tf.shape(ids))
    zeros = tf.zeros([tf.shape(ids)[0], vocabulary])
    return tf.tensor_scatter_nd_add(zeros, tf.stack([rows, ids], axis=-1), tf.ones_like(ids, tf.float32))


def _penalty(lengths: tf.Tensor, exponent: float) -> tf.Tensor:
    return tf.pow((5.0 + tf.cast(lengths, tf.float32)) / 6.0, exponent)
