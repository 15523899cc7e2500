"""Processors of log-probabilities: the twins of `chatbot.decoding.processors`."""

from typing import Any, NamedTuple

import numpy as np

from chatbot.decoding.arrays.log_probabilities import Floats, Ids


class Prefix(NamedTuple):
    """The ids of each row before the next one."""

    positions: Ids  # [rows], their number
    ids: Ids  # [rows, max_length], padded


class Generic(NamedTuple):
    """The distribution without the question, for some rows."""

    rows: Any  # an index of arrays
    logits: Floats


def anti_lm(log_probs: Floats, generic: Generic, weight: float) -> Floats:
    """Subtract weight * logits. They differ from log-probabilities by a constant, which changes no choice of an id."""
    result = log_probs.copy()
    result[generic.rows] -= np.float32(weight) * generic.logits
    return result


def repetition_penalty(log_probs: Floats, prefix: Prefix, penalty: float) -> Floats:
    """Multiply the log-probabilities of ids that the row has by `penalty`; divide them if they are above 0."""
    of_ids, factor = np.take_along_axis(log_probs, prefix.ids, axis=1), np.float32(penalty)
    return _replaced(log_probs, prefix.ids, np.where(of_ids > 0, of_ids / factor, of_ids * factor))


def frequency_penalty(log_probs: Floats, prefix: Prefix, penalty: float) -> Floats:
    """Subtract `penalty` nats from an id's log-probability for each time that the row has it."""
    counts = (prefix.ids[:, :, None] == prefix.ids[:, None, :]).sum(axis=-1).astype(np.float32)
    of_ids = np.take_along_axis(log_probs, prefix.ids, axis=1)
    return _replaced(log_probs, prefix.ids, of_ids - np.float32(penalty) * counts)


def presence_penalty(log_probs: Floats, prefix: Prefix, penalty: float) -> Floats:
    """Subtract `penalty` nats from the log-probabilities of ids that the row has."""
    of_ids = np.take_along_axis(log_probs, prefix.ids, axis=1)
    return _replaced(log_probs, prefix.ids, of_ids - np.float32(penalty))


def _replaced(log_probs: Floats, ids: Ids, values: Floats) -> Floats:
    """Return the log-probabilities with new values at these ids. Beyond the position are ids of -inf, which stays."""
    result = log_probs.copy()
    np.put_along_axis(result, ids, values, axis=1)
    return result


def no_repeat_ngram(log_probs: Floats, prefix: Prefix, size: int) -> Floats:
    """Forbid the ids that would complete an n-gram of `size` ids which the row has already."""
    positions, ids = prefix
    windows = ids.shape[1] - size + 1
    if windows < 1:
        return log_probs
    every = np.arange(len(ids))
    equal = np.arange(windows) + size - 1 < positions[:, None]  # [rows, windows], the n-gram was generated
    for i in range(size - 1):
        last = ids[every, np.maximum(positions - (size - 1) + i, 0)]  # [rows]
        equal &= ids[:, i : i + windows] == last[:, None]
    rows, begins = np.nonzero(equal)
    forbidden = log_probs.copy()
    forbidden[rows, ids[rows, begins + size - 1]] = -np.inf
    return _unless_none_is_left(forbidden, log_probs)


def min_length(log_probs: Floats, prefix: Prefix, length: int, end: int) -> Floats:
    """Forbid the end symbol before `length` ids."""
    forbidden = log_probs.copy()
    forbidden[prefix.positions < length, end] = -np.inf
    return _unless_none_is_left(forbidden, log_probs)


def _unless_none_is_left(forbidden: Floats, log_probs: Floats) -> Floats:
    is_left = forbidden.max(axis=-1, keepdims=True) > -np.inf
    return np.where(is_left, forbidden, log_probs)
