"""Greedy search: the most probable token at each position."""

from typing import Any

import tensorflow as tf

from chatbot.decoding.step import State, Step, Tokens, log_probabilities


def greedy_search(
    step: Step, state: State, rows: tf.Tensor, tokens: Tokens, max_length: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decode each row until its end token or max_length tokens.

    state: the state before the first token. rows: scalar int32, the number of rows.
    Returns ids [rows, 1, max_length] int32, padded with tokens.pad, and the summed log-probabilities
    [rows, 1] float32: the same form as beam search with one beam.
    """
    found = tf.TensorArray(tf.int32, max_length, element_shape=[None])

    def unfinished(
        position: tf.Tensor, ids: tf.Tensor, done: tf.Tensor, scores: tf.Tensor, state: State, found: tf.TensorArray
    ) -> tf.Tensor:
        return (position < max_length) & ~tf.reduce_all(done)

    def advance(
        position: tf.Tensor, ids: tf.Tensor, done: tf.Tensor, scores: tf.Tensor, state: State, found: tf.TensorArray
    ) -> tuple[Any, ...]:
        logits, state = step(state, ids)
        log_probs = log_probabilities(logits, tokens, position == 0)  # [rows, vocabulary]
        best = tf.argmax(log_probs, axis=-1, output_type=tf.int32)  # [rows]
        ids = tf.where(done, tokens.pad, best)
        scores += tf.where(done, 0.0, tf.reduce_max(log_probs, axis=-1))
        return position + 1, ids, done | (ids == tokens.end), scores, state, found.write(position, ids)

    start = (
        tf.constant(0),
        tf.fill([rows], tokens.begin),
        tf.zeros([rows], tf.bool),
        tf.zeros([rows]),
        state,
        found,
    )
    position, _, _, scores, _, found = tf.while_loop(unfinished, advance, start)
    ids = tf.transpose(found.gather(tf.range(position)))  # [rows, position]
    padding = [[0, 0], [0, max_length - position]]
    ids = tf.pad(ids, padding, constant_values=tokens.pad)
    return ids[:, None], scores[:, None]
