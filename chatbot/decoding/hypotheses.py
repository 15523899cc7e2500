"""Unfinished replies, and how one id is added to each: the one chosen for it, or the best ones in beam search.

Beam search has the length penalty of Wu et al. (2016). Arrays are of NumPy or TensorFlow; the loop over positions is
elsewhere.
"""

from typing import NamedTuple

import numpy as np

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BOS, EOS, PAD
from chatbot.decoding.array_functions import INFINITY, Array, functions_of
from chatbot.decoding.automaton import BoundedAutomaton


class Hypotheses(NamedTuple):
    """The hypotheses of each row, as many for all: the beams of beam search, one in greedy search and sampling.

    No int32 or bool, which a loop on a GPU has on the host. An impossible hypothesis has the log-probability -inf.
    """

    ids: Array  # [rows, hypotheses, max_length] int64, padded
    last: Array  # [rows, hypotheses] int64, the last ids, or the begin symbol
    log_probs: Array  # [rows, hypotheses] float32, in nats, of all ids
    lengths: Array  # [rows, hypotheses] int64, the end counted
    are_finished: Array  # [rows, hypotheses] int64, 0 or 1
    states: Array  # [rows, hypotheses] int64, of the automaton


def first_hypotheses(hypotheses: int, automaton: BoundedAutomaton) -> Hypotheses:
    """Return the hypotheses of one row before the first id, arrays of NumPy: [1, hypotheses, ...]."""
    # All hypotheses start equal. Only the first may be extended, or each would appear several times.
    is_first = np.arange(hypotheses) == 0
    return Hypotheses(
        ids=np.full((1, hypotheses, automaton.max_length), PAD, np.int64),
        last=np.full((1, hypotheses), BOS, np.int64),
        log_probs=np.where(is_first, np.float32(0), -INFINITY)[None],
        lengths=np.zeros((1, hypotheses), np.int64),
        are_finished=np.zeros((1, hypotheses), np.int64),
        states=np.full((1, hypotheses), automaton.start, np.int64),
    )


def appended(
    automaton: BoundedAutomaton, hypotheses: Hypotheses, log_probs: Array, ids: Array, position: Array | int
) -> Hypotheses:
    """Return the hypotheses with an id behind each that is unfinished. There is one a row.

    log_probs: of the next id, [rows, vocabulary] float32. ids: [rows] int64. position: 0 at the first id.
    """
    functions = functions_of(log_probs)
    are_finished = hypotheses.are_finished > 0  # [rows, 1]
    added = functions.where(are_finished, np.float32(0), functions.take(log_probs, ids[:, None]))
    last = functions.where(are_finished, np.int64(PAD), ids[:, None])
    return hypotheses._replace(
        ids=functions.where(_is_at(hypotheses, position), last[:, :, None], hypotheses.ids),
        last=last,
        log_probs=hypotheses.log_probs + added,
        lengths=hypotheses.lengths + 1 - hypotheses.are_finished,
        are_finished=functions.int64(are_finished | (last == EOS)),
        states=automaton.states_after(hypotheses.states, ids[:, None]),
    )


def extended(
    decoding: DecodingSettings,
    automaton: BoundedAutomaton,
    hypotheses: Hypotheses,
    log_probs: Array,
    position: Array | int,
) -> tuple[Hypotheses, Array]:
    """Return the best hypotheses of beam search that are an id longer, and the parent of each, [rows, beams] int64.

    The best are first. A finished hypothesis competes with the others.

    log_probs: of the next id of each hypothesis, [rows, beams, vocabulary] float32. position: 0 at the first id.
    """
    functions = functions_of(log_probs)
    vocabulary = log_probs.shape[-1]
    are_finished = hypotheses.are_finished > 0
    # A finished hypothesis has one continuation: padding, at no cost.
    padding = np.where(np.arange(vocabulary) == PAD, np.float32(0), -INFINITY)
    log_probs = hypotheses.log_probs[:, :, None] + functions.where(are_finished[:, :, None], padding, log_probs)
    lengths = hypotheses.lengths + 1 - hypotheses.are_finished
    ranks = log_probs / length_penalty(lengths, decoding)[:, :, None]
    # [rows, beams], flat over beams and ids
    chosen = functions.largest(functions.reshape(ranks, (-1, decoding.beams * vocabulary)), decoding.beams)
    parents = chosen // vocabulary
    ids = chosen % vocabulary
    log_probs = functions.take(functions.reshape(log_probs, (-1, decoding.beams * vocabulary)), chosen)
    states = automaton.states_after(functions.take(hypotheses.states, parents), ids)
    next_hypotheses = Hypotheses(
        ids=functions.where(_is_at(hypotheses, position), ids[:, :, None], functions.take(hypotheses.ids, parents)),
        last=ids,
        log_probs=log_probs,
        lengths=functions.take(lengths, parents),
        are_finished=functions.int64((functions.take(hypotheses.are_finished, parents) > 0) | (ids == EOS)),
        # An impossible hypothesis has any ids. It stays in a state that allows others, or its row would become NaN.
        states=functions.where(log_probs == -INFINITY, np.int64(0), states),
    )
    return next_hypotheses, parents


def scores(decoding: DecodingSettings, hypotheses: Hypotheses) -> Array:
    """Return the scores of the hypotheses, [rows, hypotheses] float32, in nats.

    Those of beam search are log-probability / ((5 + length) / 6) ** length_penalty.
    """
    if decoding.beams == 1:
        return hypotheses.log_probs
    return hypotheses.log_probs / length_penalty(hypotheses.lengths, decoding)


def length_penalty(lengths: Array, decoding: DecodingSettings) -> Array:
    """Return the divisors of log-probabilities, float32, in the shape of the lengths, which are integers."""
    return ((5.0 + functions_of(lengths).float32(lengths)) / np.float32(6)) ** np.float32(decoding.length_penalty)


def _is_at(hypotheses: Hypotheses, position: Array | int) -> Array:
    """Return which places of the ids are the position, [max_length] bool."""
    return position == np.arange(hypotheses.ids.shape[2], dtype=np.int32)
