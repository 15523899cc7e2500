"""Beam search with frozen finished beams and the length penalty of Wu et al. (2016)."""

from typing import Any

import tensorflow as tf

from chatbot.decoding.step import State, Step, Tokens, log_probabilities


def beam_search(
    step: Step,
    state: State,
    rows: tf.Tensor,
    tokens: Tokens,
    max_length: int,
    beam_size: int,
    length_penalty: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decode each row with beam_size hypotheses.

    A finished hypothesis is frozen: it keeps its score and competes with the others until the
    search ends, when all are finished or max_length tokens long. Hypotheses are compared by
    log-probability / ((5 + length) / 6) ** length_penalty, the end token counted in the length.

    state: the state before the first token. rows: scalar int32.
    Returns ids [rows, beam_size, max_length] int32, padded with tokens.pad, and penalised scores
    [rows, beam_size] float32, the best first. A hypothesis that does not exist (the vocabulary is
    smaller than the beam) has score -inf.
    """
    beams = beam_size
    state = tf.nest.map_structure(lambda x: tf.repeat(x, beams, axis=0), state)
    row_starts = tf.range(rows)[:, None] * beams  # [rows, 1]

    def unfinished(
        position: tf.Tensor, found: tf.Tensor, log_probs: tf.Tensor, lengths: tf.Tensor, done: tf.Tensor, state: State
    ) -> tf.Tensor:
        return (position < max_length) & ~tf.reduce_all(done)

    def advance(
        position: tf.Tensor, found: tf.Tensor, log_probs: tf.Tensor, lengths: tf.Tensor, done: tf.Tensor, state: State
    ) -> tuple[Any, ...]:
        last = tf.where(position == 0, tokens.begin, found[:, :, tf.maximum(position - 1, 0)])
        logits, state = step(state, tf.reshape(last, [-1]))
        steps = log_probabilities(logits, tokens, position == 0)  # [rows * beams, vocabulary]
        vocabulary = tf.shape(steps)[-1]
        steps = tf.reshape(steps, [rows, beams, vocabulary])
        # A finished hypothesis goes on in one way only: with padding, at no cost.
        frozen = tf.where(tf.range(vocabulary) == tokens.pad, 0.0, -float("inf"))
        steps = tf.where(done[:, :, None], frozen, steps)
        totals = log_probs[:, :, None] + steps  # [rows, beams, vocabulary]
        grown = lengths + tf.cast(~done, tf.int32)
        ranks = totals / _penalty(grown, length_penalty)[:, :, None]
        _, chosen = tf.math.top_k(tf.reshape(ranks, [rows, -1]), beams)  # [rows, beams]

        parent, ids = chosen // vocabulary, chosen % vocabulary

        def take(x: tf.Tensor) -> tf.Tensor:
            return tf.gather(x, parent, batch_dims=1)  # of each chosen hypothesis' parent

        here = tf.range(max_length) == position  # [max_length]
        found = tf.where(here, ids[:, :, None], take(found))  # [rows, beams, max_length]
        log_probs = tf.gather(tf.reshape(totals, [rows, -1]), chosen, batch_dims=1)
        from_beam = tf.reshape(row_starts + parent, [-1])
        state = tf.nest.map_structure(lambda x: tf.gather(x, from_beam), state)
        done = take(done) | (ids == tokens.end)
        return position + 1, found, log_probs, take(grown), done, state

    start = (
        tf.constant(0),
        tf.fill([rows, beams, max_length], tokens.pad),
        # All beams start equal, so only the first may be extended.
        tf.tile(tf.constant([[0.0] + [-float("inf")] * (beams - 1)]), [rows, 1]),
        tf.zeros([rows, beams], tf.int32),
        tf.zeros([rows, beams], tf.bool),
        state,
    )
    _, found, log_probs, lengths, _, _ = tf.while_loop(unfinished, advance, start)
    return found, log_probs / _penalty(lengths, length_penalty)  # in the order of the last top_k: the best first


def _penalty(lengths: tf.Tensor, alpha: float) -> tf.Tensor:
    return tf.pow((5.0 + tf.cast(lengths, tf.float32)) / 6.0, alpha)
