"""Beam search with the length and coverage penalties of Wu et al. (2016), and in groups (Vijayakumar et al., 2018)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from chatbot.decoding.automaton import Automaton
from chatbot.decoding.processor import Prefix, Processor, process
from chatbot.decoding.step import Constraint, SpecialIds, State, Step


class Beams(NamedTuple):
    """The hypotheses before an id is added at `position`."""

    position: tf.Tensor  # scalar int32
    ids: tf.Tensor  # [rows, beams, max_length] int32, padded
    log_probs: tf.Tensor  # [rows, beams] float32, of all ids up to here
    lengths: tf.Tensor  # [rows, beams] int32, the end counted
    bonus: Any  # [rows, beams] float32, () without one
    finished: tf.Tensor  # [rows, beams] bool
    automaton_states: tf.Tensor  # [rows, beams] int32
    state: State  # each tensor [rows * beams, ...]
    processor_states: tuple[State, ...]  # as state


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

    A hypothesis is finished by the end symbol. It then keeps its score and competes with the others until all are
    finished or have max_length ids. Hypotheses are ranked by log-probability / ((5 + length) / 6) ** length_penalty;
    the end symbol counts in the length.

    state: the state before the first id. rows: scalar int32, the number of rows. automaton: which ids may be generated.
    processors: applied in order to the log-probabilities of the next id.

    bonus: what is added to the score of an unfinished hypothesis, and stays when it is finished, by the state after its
    last step: [hypotheses] float32. The coverage penalty is one.

    groups: the hypotheses are divided into groups of equal size, which are searched one after another at each position.
    To be kept, an id loses `diversity` nats for each hypothesis of an earlier group that has it at this position. The
    scores do not contain this loss.

    Returns ids [rows, beam_size, max_length] int32, padded with special_ids.pad, and scores [rows, beam_size] float32,
    the values above in nats, the best first. If fewer than beam_size hypotheses are possible, the others have score
    -inf.
    """
    constraint = Constraint(automaton, special_ids.end, max_length)
    group_size = beam_size // groups
    row_starts = tf.range(rows)[:, None] * beam_size  # [rows, 1]

    def repeated(state: State) -> State:
        return tf.nest.map_structure(lambda x: tf.repeat(x, beam_size, axis=0), state)

    def unfinished(beams: Beams) -> tf.Tensor:
        return (beams.position < max_length) & ~tf.reduce_all(beams.finished)

    def advance(beams: Beams) -> tuple[Beams]:
        position, finished = beams.position, beams.finished
        last = tf.where(position == 0, special_ids.begin, beams.ids[:, :, tf.maximum(position - 1, 0)])
        last = tf.reshape(last, [-1])  # [rows * beams]
        logits, state = step(beams.state, last)
        automaton_states = tf.reshape(beams.automaton_states, [-1])  # [rows * beams]
        log_probs = constraint.log_probabilities(logits, automaton_states, position)  # [rows * beams, vocabulary]
        prefix = Prefix(position, tf.reshape(beams.ids, [-1, max_length]), last)
        log_probs, processor_states = process(processors, log_probs, prefix, beams.processor_states)
        vocabulary = tf.shape(log_probs)[-1]
        log_probs = tf.reshape(log_probs, [rows, beam_size, vocabulary])
        # A finished hypothesis has one continuation: padding, at no cost.
        padding = tf.where(tf.range(vocabulary) == special_ids.pad, 0.0, -float("inf"))
        log_probs = tf.where(finished[:, :, None], padding, log_probs)
        log_probs = beams.log_probs[:, :, None] + log_probs  # of whole hypotheses
        lengths = beams.lengths + tf.cast(~finished, tf.int32)
        added: Any = ()
        if bonus is not None:
            added = tf.where(finished, beams.bonus, tf.reshape(bonus(state), [rows, beam_size]))

        def ranks(part: slice, loss: tf.Tensor | None) -> tf.Tensor:
            """Return the ranks of all continuations of some hypotheses, [rows, hypotheses, vocabulary]."""
            values = log_probs[:, part] if loss is None else log_probs[:, part] - loss
            values /= penalty[:, part, None]
            return values if bonus is None else values + added[:, part, None]

        penalty = _penalty(lengths, length_penalty)
        parent, next_ids = _continued(ranks, groups, group_size, vocabulary, special_ids.pad, diversity)

        def of_parent(x: tf.Tensor) -> tf.Tensor:
            return tf.gather(x, parent, batch_dims=1)

        best = parent * vocabulary + next_ids  # [rows, beams], flat over beams and ids
        log_probs = tf.gather(tf.reshape(log_probs, [rows, -1]), best, batch_dims=1)  # [rows, beams]
        automaton_states = constraint.next_states(of_parent(beams.automaton_states), next_ids)
        # An impossible hypothesis has any ids. It stays in a state that allows others, or its row would become NaN.
        automaton_states = tf.where(tf.math.is_inf(log_probs), 0, automaton_states)
        at_position = tf.range(max_length) == position  # [max_length]
        parent_rows = tf.reshape(row_starts + parent, [-1])  # [rows * beams]
        state, processor_states = tf.nest.map_structure(lambda x: tf.gather(x, parent_rows), (state, processor_states))
        advanced = Beams(
            position=position + 1,
            ids=tf.where(at_position, next_ids[:, :, None], of_parent(beams.ids)),
            log_probs=log_probs,
            lengths=of_parent(lengths),
            bonus=tf.nest.map_structure(of_parent, added),
            finished=of_parent(finished) | (next_ids == special_ids.end),
            automaton_states=automaton_states,
            state=state,
            processor_states=processor_states,
        )
        return (advanced,)

    # All beams of a group start equal. Only the first may be extended, or each hypothesis would appear several times.
    first_alone = [0.0] + [-float("inf")] * (group_size - 1)
    start = Beams(
        position=tf.constant(0),
        ids=tf.fill([rows, beam_size, max_length], special_ids.pad),
        log_probs=tf.tile(tf.constant([first_alone * groups]), [rows, 1]),
        lengths=tf.zeros([rows, beam_size], tf.int32),
        bonus=() if bonus is None else tf.zeros([rows, beam_size]),
        finished=tf.zeros([rows, beam_size], tf.bool),
        automaton_states=tf.fill([rows, beam_size], constraint.start),
        state=repeated(state),
        processor_states=tuple(repeated(processor.start) for processor in processors),
    )
    (beams,) = tf.while_loop(unfinished, advance, (start,))
    scores = beams.log_probs / _penalty(beams.lengths, length_penalty)
    if bonus is not None:
        scores += beams.bonus
    if groups == 1:
        return beams.ids, scores  # top_k returns the best first
    scores, order = tf.math.top_k(scores, beam_size)
    return tf.gather(beams.ids, order, batch_dims=1), scores


def _continued(
    ranks: Callable[[slice, tf.Tensor | None], tf.Tensor],
    groups: int,
    group_size: int,
    vocabulary: tf.Tensor,
    pad: int,
    diversity: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the parents and the last ids of the best continuations of each group, both [rows, beams] int32.

    ranks: (the hypotheses of a group, the nats that each id loses [rows, 1, vocabulary]) -> the ranks of their
    continuations, [rows, group, vocabulary].
    """
    parents: list[tf.Tensor] = []
    next_ids: list[tf.Tensor] = []
    for group in range(groups):
        first = group * group_size
        loss = None
        if group:
            times = tf.math.bincount(tf.concat(next_ids, 1), minlength=vocabulary, maxlength=vocabulary, axis=-1)
            times = tf.where(tf.range(vocabulary) == pad, 0, times)  # finished hypotheses may agree
            loss = diversity * tf.cast(times, tf.float32)[:, None]
        flat = ranks(slice(first, first + group_size), loss)
        _, best = tf.math.top_k(tf.reshape(flat, [tf.shape(flat)[0], -1]), group_size)  # [rows, group]
        parents.append(first + best // vocabulary)
        next_ids.append(best % vocabulary)
    return (parents[0], next_ids[0]) if groups == 1 else (tf.concat(parents, 1), tf.concat(next_ids, 1))


def _penalty(lengths: tf.Tensor, exponent: float) -> tf.Tensor:
    return tf.pow((5.0 + tf.cast(lengths, tf.float32)) / 6.0, exponent)
