"""Search with one hypothesis a row. A `Pick` chooses each next id."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from chatbot.decoding.step import Automaton, Constraint, SpecialIds, State, Step

# (log_probs [rows, vocabulary] float32, position: scalar int32, 0 at the first id) -> the next ids [rows] int32.
# An id with log-probability -inf must not be picked.
Pick = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def search(
    step: Step,
    state: State,
    rows: tf.Tensor,
    special_ids: SpecialIds,
    automaton: Automaton,
    max_length: int,
    pick: Pick,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Generate the ids of each row, up to its end or to max_length.

    Greedy search and sampling differ in `pick` alone.

    state: the state before the first id. rows: scalar int32, the number of rows. automaton: which ids may be generated.
    Returns ids [rows, 1, max_length] int32, padded with special_ids.pad, and scores [rows, 1] float32, the sums of the
    picked ids' log-probabilities in nats. The shapes are those of beam search with one beam.
    """
    constraint = Constraint(automaton, special_ids.end, max_length)

    def unfinished(position: tf.Tensor, finished: tf.Tensor, *_: Any) -> tf.Tensor:
        return (position < max_length) & ~tf.reduce_all(finished)

    def advance(
        position: tf.Tensor,
        finished: tf.Tensor,
        ids: tf.Tensor,
        automaton_state: tf.Tensor,
        scores: tf.Tensor,
        state: State,
        steps: tf.TensorArray,
    ) -> tuple[Any, ...]:
        logits, state = step(state, ids)
        log_probs = constraint.log_probabilities(logits, automaton_state, position)  # [rows, vocabulary]
        picked = pick(log_probs, position)  # [rows]
        scores += tf.where(finished, 0.0, tf.gather(log_probs, picked, batch_dims=1))
        automaton_state = constraint.next_states(automaton_state, picked)
        ids = tf.where(finished, special_ids.pad, picked)
        finished |= ids == special_ids.end
        return position + 1, finished, ids, automaton_state, scores, state, steps.write(position, ids)

    start = (
        tf.constant(0),
        tf.zeros([rows], tf.bool),
        tf.fill([rows], special_ids.begin),
        tf.fill([rows], constraint.start),
        tf.zeros([rows]),
        state,
        tf.TensorArray(tf.int32, max_length, element_shape=[None]),
    )
    length, _, _, _, scores, _, steps = tf.while_loop(unfinished, advance, start)
    ids = tf.transpose(steps.gather(tf.range(length)))  # [rows, length]
    ids = tf.pad(ids, [[0, 0], [0, max_length - length]], constant_values=special_ids.pad)
    return ids[:, None], scores[:, None]
