"""Processors: formulas that change the log-probabilities of the next id by the ids before it.

Log-probabilities are [rows, vocabulary] float32 and need not be normalised. An id of -inf is not allowed: it keeps
-inf, and each row keeps an id that is allowed. Arrays are of NumPy or TensorFlow.
"""

from typing import NamedTuple

import numpy as np

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import EOS
from chatbot.decoding.array_functions import INFINITY, Array, functions_of


class Prefix(NamedTuple):
    """The ids of each row before the next one."""

    positions: Array  # [rows, 1] int64 or int32, their number
    ids: Array  # [rows, max_length] int64 or int32, padded; padding has the log-probability -inf, and keeps it


def processed(decoding: DecodingSettings, log_probs: Array, prefix: Prefix, generic: Array | None) -> Array:
    """Return the log-probabilities of the next id after the settings' processors.

    generic: for --anti-lm, the log-probabilities without the question, [rows, vocabulary], up to a constant for each
    row; 0 from --anti-lm-tokens on. None: for no row.
    """
    if decoding.repetition_penalty != 1:
        log_probs = repetition_penalty(log_probs, prefix, decoding.repetition_penalty)
    if decoding.presence_penalty:
        log_probs = presence_penalty(log_probs, prefix, decoding.presence_penalty)
    if decoding.frequency_penalty:
        log_probs = frequency_penalty(log_probs, prefix, decoding.frequency_penalty)
    if decoding.anti_lm and generic is not None:
        # Li et al. (2016), "A Diversity-Promoting Objective Function": ids that follow any question lose most.
        log_probs = log_probs - decoding.anti_lm * generic
    if decoding.no_repeat_ngram:
        log_probs = no_repeat_ngram(log_probs, prefix, decoding.no_repeat_ngram)
    if decoding.min_reply_length > 1:
        log_probs = min_length(log_probs, prefix, decoding.min_reply_length)
    return log_probs


def repetition_penalty(log_probs: Array, prefix: Prefix, penalty: float) -> Array:
    """Multiply the log-probabilities of ids that the row has by `penalty`; divide them if they are above 0.

    Keskar et al. (2019). The log-probabilities must be normalised.
    """
    functions = functions_of(log_probs)
    of_ids = functions.take(log_probs, prefix.ids)
    return functions.put(log_probs, prefix.ids, functions.where(of_ids > 0, of_ids / penalty, of_ids * penalty))


def presence_penalty(log_probs: Array, prefix: Prefix, penalty: float) -> Array:
    """Subtract `penalty` nats from the log-probabilities of ids that the row has."""
    functions = functions_of(log_probs)
    return functions.put(log_probs, prefix.ids, functions.take(log_probs, prefix.ids) - penalty)


def frequency_penalty(log_probs: Array, prefix: Prefix, penalty: float) -> Array:
    """Subtract `penalty` nats from an id's log-probability for each time that the row has it."""
    functions = functions_of(log_probs)
    times = functions.sum(prefix.ids[:, :, None] == prefix.ids[:, None, :])[..., 0]  # [rows, max_length]
    values = functions.take(log_probs, prefix.ids) - penalty * functions.float32(times)
    return functions.put(log_probs, prefix.ids, values)


def no_repeat_ngram(log_probs: Array, prefix: Prefix, size: int) -> Array:
    """Forbid the ids that would complete an n-gram of `size` ids which the row has already (Paulus et al., 2018)."""
    functions, (positions, ids) = functions_of(log_probs), prefix
    windows = ids.shape[1] - size + 1
    if windows < 1:
        return log_probs
    is_repeated = np.arange(windows) + size - 1 < positions  # [rows, windows], the n-gram was generated
    for i in range(size - 1):
        last = functions.take(ids, functions.maximum(positions - (size - 1) + i, 0))  # [rows, 1]
        is_repeated = is_repeated & (ids[:, i : i + windows] == last)
    return _unless_none_is_left(functions.forbid(log_probs, ids[:, size - 1 :], is_repeated), log_probs)


def min_length(log_probs: Array, prefix: Prefix, length: int) -> Array:
    """Forbid the end symbol before `length` ids."""
    functions = functions_of(log_probs)
    too_early = (prefix.positions < length) & (np.arange(log_probs.shape[-1]) == EOS)
    return _unless_none_is_left(functions.where(too_early, -INFINITY, log_probs), log_probs)


def _unless_none_is_left(forbidden: Array, log_probs: Array) -> Array:
    """Return the log-probabilities after some ids were forbidden; as before where no id would be left."""
    functions = functions_of(log_probs)
    return functions.where(functions.max(forbidden) > -INFINITY, forbidden, log_probs)
