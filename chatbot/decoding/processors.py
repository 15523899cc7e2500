"""Processors that adjust the log-probabilities of the next token according to the previous tokens.

Log-probabilities have shape [rows, vocabulary] and dtype float32, and need not be normalised. A token with
log-probability -inf is forbidden. Processors can forbid tokens, but at least one token per row remains allowed. All
functions accept NumPy arrays and TensorFlow tensors.
"""

from typing import NamedTuple

import numpy as np

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import EOS
from chatbot.decoding.array_functions import INFINITY, Array, functions_of


class Prefix(NamedTuple):
    """The previous token ids of each row."""

    positions: Array  # number of previous ids, [rows, 1] int64 or int32
    ids: Array  # ids padded with PAD, which is always forbidden, [rows, max_length] int64 or int32


def apply_processors(decoding: DecodingSettings, log_probs: Array, prefix: Prefix, generic: Array | None) -> Array:
    """Apply all processors enabled in the decoding settings to the log-probabilities of the next token.

    Args:
        decoding: The decoding settings.
        log_probs: Log-probabilities of the next token, with shape [rows, vocabulary].
        prefix: The previous tokens.
        generic: Log-probabilities for an empty question, used by --anti-lm, with shape [rows, vocabulary]. They need
            not be normalised, and are 0 in rows with at least --anti-lm-tokens tokens. None if no row needs them.
    """
    if decoding.repetition_penalty != 1:
        log_probs = repetition_penalty(log_probs, prefix, decoding.repetition_penalty)
    if decoding.presence_penalty:
        log_probs = presence_penalty(log_probs, prefix, decoding.presence_penalty)
    if decoding.frequency_penalty:
        log_probs = frequency_penalty(log_probs, prefix, decoding.frequency_penalty)
    if decoding.anti_lm and generic is not None:
        # Penalise tokens that are likely after any question (Li et al., 2016, "A Diversity-Promoting Objective
        # Function").
        log_probs = log_probs - decoding.anti_lm * generic
    if decoding.no_repeat_ngram:
        log_probs = no_repeat_ngram(log_probs, prefix, decoding.no_repeat_ngram)
    if decoding.min_reply_length > 1:
        log_probs = min_length(log_probs, prefix, decoding.min_reply_length)
    return log_probs


def repetition_penalty(log_probs: Array, prefix: Prefix, penalty: float) -> Array:
    """Multiply the log-probability of each token in the prefix by `penalty` (Keskar et al., 2019).

    Positive values are divided by it. The log-probabilities must be normalised.
    """
    functions = functions_of(log_probs)
    selected = functions.take(log_probs, prefix.ids)
    return functions.put(log_probs, prefix.ids, functions.where(selected > 0, selected / penalty, selected * penalty))


def presence_penalty(log_probs: Array, prefix: Prefix, penalty: float) -> Array:
    """Subtract `penalty` nats from the log-probability of each token in the prefix."""
    functions = functions_of(log_probs)
    return functions.put(log_probs, prefix.ids, functions.take(log_probs, prefix.ids) - penalty)


def frequency_penalty(log_probs: Array, prefix: Prefix, penalty: float) -> Array:
    """Subtract `penalty` nats from a token's log-probability for each of its occurrences in the prefix."""
    functions = functions_of(log_probs)
    counts = functions.sum(prefix.ids[:, :, None] == prefix.ids[:, None, :])[..., 0]  # [rows, max_length]
    values = functions.take(log_probs, prefix.ids) - penalty * functions.float32(counts)
    return functions.put(log_probs, prefix.ids, values)


def no_repeat_ngram(log_probs: Array, prefix: Prefix, size: int) -> Array:
    """Forbid tokens that would repeat an n-gram of length `size` from the prefix (Paulus et al., 2018)."""
    functions, (positions, ids) = functions_of(log_probs), prefix
    windows = ids.shape[1] - size + 1
    if windows < 1:
        return log_probs
    matches = np.arange(windows) + size - 1 < positions  # [rows, windows]
    for i in range(size - 1):
        last = functions.take(ids, functions.maximum(positions - (size - 1) + i, 0))  # [rows, 1]
        matches = matches & (ids[:, i : i + windows] == last)
    return _keep_an_allowed_id(functions.forbid(log_probs, ids[:, size - 1 :], matches), log_probs)


def min_length(log_probs: Array, prefix: Prefix, length: int) -> Array:
    """Forbid EOS in rows with fewer than `length` tokens."""
    functions = functions_of(log_probs)
    too_early = (prefix.positions < length) & (np.arange(log_probs.shape[-1]) == EOS)
    return _keep_an_allowed_id(functions.where(too_early, -INFINITY, log_probs), log_probs)


def _keep_an_allowed_id(forbidden: Array, log_probs: Array) -> Array:
    """Return the rows of `forbidden`. If a row has no allowed token, return the row of `log_probs` in its place."""
    functions = functions_of(log_probs)
    return functions.where(functions.max(forbidden) > -INFINITY, forbidden, log_probs)
