"""Processors of log-probabilities in NumPy: the twins of `chatbot.decoding.processors`."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.encoding.vocabulary import BOS, EOS
from chatbot.export.runtime.model import ExportedModel, Floats, Ids, State, log_softmax


class Prefix(NamedTuple):
    """The ids of each hypothesis before the next one."""

    position: int
    ids: Ids  # [hypotheses, max_length], padded
    last: Ids  # [hypotheses]


class Processors:
    """All processors of the decoding settings, for one search. hypotheses: their number at its start."""

    def __init__(self, model: ExportedModel, decoding: DecodingSettings, hypotheses: int) -> None:
        self._model, self._decoding = model, decoding
        # The state of the anti-language model. Its question is the begin symbol alone, as in `reply_search`.
        self._generic: State | None = model.encode([[BOS]]).repeated(hypotheses) if decoding.anti_lm else None

    def __call__(self, log_probs: Floats, prefix: Prefix) -> Floats:
        """Return the log-probabilities of the next id as the settings change them, [hypotheses, vocabulary].

        An id of -inf keeps it, and each hypothesis keeps an id that is not.
        """
        decoding = self._decoding
        if decoding.repetition_penalty != 1:
            log_probs = _repetition_penalty(log_probs, prefix, np.float32(decoding.repetition_penalty))
        if decoding.presence_penalty:
            log_probs = _presence_penalty(log_probs, prefix, np.float32(decoding.presence_penalty))
        if decoding.frequency_penalty:
            log_probs = _frequency_penalty(log_probs, prefix, np.float32(decoding.frequency_penalty))
        if self._generic is not None and prefix.position < decoding.anti_lm_tokens:
            logits, self._generic, _ = self._model.step(self._generic, prefix.last)
            log_probs = log_probs - np.float32(decoding.anti_lm) * log_softmax(logits)
        if decoding.no_repeat_ngram:
            log_probs = _no_repeat_ngram(log_probs, prefix, decoding.no_repeat_ngram)
        if decoding.min_reply_length > 1:
            log_probs = _min_length(log_probs, prefix, decoding.min_reply_length)
        return log_probs

    def select(self, numbers: npt.NDArray[np.integer]) -> None:
        """Keep these hypotheses, in this order; one may be kept several times."""
        if self._generic is not None:
            self._generic = self._generic.with_parents(numbers)


def _repetition_penalty(log_probs: Floats, prefix: Prefix, penalty: np.float32) -> Floats:
    of_ids = np.take_along_axis(log_probs, prefix.ids, axis=1)
    return _replaced(log_probs, prefix.ids, np.where(of_ids > 0, of_ids / penalty, of_ids * penalty))


def _presence_penalty(log_probs: Floats, prefix: Prefix, penalty: np.float32) -> Floats:
    return _replaced(log_probs, prefix.ids, np.take_along_axis(log_probs, prefix.ids, axis=1) - penalty)


def _frequency_penalty(log_probs: Floats, prefix: Prefix, penalty: np.float32) -> Floats:
    counts = (prefix.ids[:, :, None] == prefix.ids[:, None, :]).sum(axis=-1).astype(np.float32)
    of_ids = np.take_along_axis(log_probs, prefix.ids, axis=1)
    return _replaced(log_probs, prefix.ids, of_ids - penalty * counts)


def _replaced(log_probs: Floats, ids: Ids, values: Floats) -> Floats:
    result = log_probs.copy()
    np.put_along_axis(result, ids, values, axis=1)
    return result


def _no_repeat_ngram(log_probs: Floats, prefix: Prefix, size: int) -> Floats:
    """Forbid the ids that would complete an n-gram which the hypothesis has already."""
    position, ids = prefix.position, prefix.ids
    forbidden = log_probs.copy()
    for place in range(size - 1, position):  # of the last id of an earlier n-gram
        begin = place - (size - 1)
        equal = (ids[:, begin:place] == ids[:, position - (size - 1) : position]).all(axis=1)
        forbidden[equal, ids[equal, place]] = -np.inf
    return _unless_none_is_left(forbidden, log_probs)


def _min_length(log_probs: Floats, prefix: Prefix, length: int) -> Floats:
    if prefix.position >= length:
        return log_probs
    forbidden = log_probs.copy()
    forbidden[:, EOS] = -np.inf
    return _unless_none_is_left(forbidden, log_probs)


def _unless_none_is_left(forbidden: Floats, log_probs: Floats) -> Floats:
    is_left = forbidden.max(axis=-1, keepdims=True) > -np.inf
    return np.where(is_left, forbidden, log_probs)
