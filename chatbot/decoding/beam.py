"""Beam search with the length penalty of Wu et al. (2016)."""

from typing import NamedTuple

import tensorflow as tf

from chatbot.decoding.step import Automaton, Constraint, SpecialIds, State, Step


class Beams(NamedTuple):
    """The hypotheses before an id is added at `position`."""

    position: tf.Tensor  # scalar int32
    ids: tf.Tensor  # [rows, beams, max_length] int32, padded
    log_probs: tf.Tensor  # [rows, beams] float32, of all ids up to here
    lengths: tf.Tensor  # [rows, beams] int32, the end counted
    finished: tf.Tensor  # [rows, beams] bool
    automaton_states: tf.Tensor  # [rows, beams] int32
    state: State  # each tensor [rows * beams, ...]


def beam_search(
    step: Step,
    state: State,
    rows: tf.Tensor,
    special_ids: SpecialIds,
    automaton: Automaton,
    max_length: int,
    beam_size: int,
    length_penalty: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Generate beam_size hypotheses for each row.

    A hypothesis is finished by the end symbol. It then keeps its score and competes with the others until all are
    finished or have max_length ids. Hypotheses are ranked by log-probability / ((5 + length) / 6) ** length_penalty;
    the end symbol counts in the length.

    state: the state before the first id. rows: scalar int32, the number of rows. automaton: which ids may be generated.
    Returns ids [rows, beam_size, max_length] int32, padded with special_ids.pad, and scores [rows, beam_size] float32,
    the values above in nats, the best first. If fewer than beam_size hypotheses are possible, the others have score
    -inf.
    """
    constraint = Constraint(automaton, special_ids.end, max_length)
    state = tf.nest.map_structure(lambda x: tf.repeat(x, beam_size, axis=0), state)
    row_starts = tf.range(rows)[:, None] * beam_size  # [rows, 1]

    def unfinished(beams: Beams) -> tf.Tensor:
        return (beams.position < max_length) & ~tf.reduce_all(beams.finished)

    def advance(beams: Beams) -> tuple[Beams]:
        position, finished = beams.position, beams.finished
        last = tf.where(position == 0, special_ids.begin, beams.ids[:, :, tf.maximum(position - 1, 0)])
        logits, state = step(beams.state, tf.reshape(last, [-1]))
        automaton_states = tf.reshape(beams.automaton_states, [-1])  # [rows * beams]
        log_probs = constraint.log_probabilities(logits, automaton_states, position)  # [rows * beams, vocabulary]
        vocabulary = tf.shape(log_probs)[-1]
        log_probs = tf.reshape(log_probs, [rows, beam_size, vocabulary])
        # A finished hypothesis has one continuation: padding, at no cost.
        padding = tf.where(tf.range(vocabulary) == special_ids.pad, 0.0, -float("inf"))
        log_probs = tf.where(finished[:, :, None], padding, log_probs)
        log_probs = beams.log_probs[:, :, None] + log_probs  # of whole hypotheses
        lengths = beams.lengths + tf.cast(~finished, tf.int32)
        ranks = log_probs / _penalty(lengths, length_penalty)[:, :, None]
        _, best = tf.math.top_k(tf.reshape(ranks, [rows, -1]), beam_size)  # [rows, beams], flat over beams and ids
        parent, next_ids = best // vocabulary, best % vocabulary

        def of_parent(x: tf.Tensor) -> tf.Tensor:
            return tf.gather(x, parent, batch_dims=1)

        log_probs = tf.gather(tf.reshape(log_probs, [rows, -1]), best, batch_dims=1)  # [rows, beams]
        automaton_states = constraint.next_states(of_parent(beams.automaton_states), next_ids)
        # An impossible hypothesis has any ids. It stays in a state that allows others, or its row would become NaN.
        automaton_states = tf.where(tf.math.is_inf(log_probs), 0, automaton_states)
        at_position = tf.range(max_length) == position  # [max_length]
        parent_rows = tf.reshape(row_starts + parent, [-1])  # [rows * beams]
        advanced = Beams(
            position=position + 1,
            ids=tf.where(at_position, next_ids[:, :, None], of_parent(beams.ids)),
            log_probs=log_probs,
            lengths=of_parent(lengths),
            finished=of_parent(finished) | (next_ids == special_ids.end),
            automaton_states=automaton_states,
            state=tf.nest.map_structure(lambda x: tf.gather(x, parent_rows), state),
        )
        return (advanced,)

    start = Beams(
        position=tf.constant(0),
        ids=tf.fill([rows, beam_size, max_length], special_ids.pad),
        # All beams start equal. Only the first may be extended, or each hypothesis would appear beam_size times.
        log_probs=tf.tile(tf.constant([[0.0] + [-float("inf")] * (beam_size - 1)]), [rows, 1]),
        lengths=tf.zeros([rows, beam_size], tf.int32),
        finished=tf.zeros([rows, beam_size], tf.bool),
        automaton_states=tf.fill([rows, beam_size], constraint.start),
        state=state,
    )
    (beams,) = tf.while_loop(unfinished, advance, (start,))
    # Sorted: top_k returns the best first.
    return beams.ids, beams.log_probs / _penalty(beams.lengths, length_penalty)


def _penalty(lengths: tf.Tensor, exponent: float) -> tf.Tensor:
    return tf.pow((5.0 + tf.cast(lengths, tf.float32)) / 6.0, exponent)
