"""What the decoding settings do to arrays of log-probabilities, in NumPy: the twin of `reply_search`."""

import numpy as np

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.encoding.vocabulary import EOS
from chatbot.decoding.arrays.log_probabilities import Floats, Ids
from chatbot.decoding.arrays.processors import (
    Generic,
    Prefix,
    anti_lm,
    frequency_penalty,
    min_length,
    no_repeat_ngram,
    presence_penalty,
    repetition_penalty,
)
from chatbot.decoding.arrays.sampling import sampled
from chatbot.decoding.arrays.truncations import min_p, temperature, top_k, top_p, typical


def processed(decoding: DecodingSettings, log_probs: Floats, prefix: Prefix, generic: Generic | None) -> Floats:
    """Return the log-probabilities of the next id after the settings' processors, [rows, vocabulary].

    An id of -inf keeps it, and each row keeps an id that is not. log_probs: not necessarily normalised, unless there is
    a repetition penalty. generic: for `anti_lm`, of the rows before `anti_lm_tokens`; None if there are none.
    """
    if decoding.repetition_penalty != 1:
        log_probs = repetition_penalty(log_probs, prefix, decoding.repetition_penalty)
    if decoding.presence_penalty:
        log_probs = presence_penalty(log_probs, prefix, decoding.presence_penalty)
    if decoding.frequency_penalty:
        log_probs = frequency_penalty(log_probs, prefix, decoding.frequency_penalty)
    if decoding.anti_lm and generic is not None:
        log_probs = anti_lm(log_probs, generic, decoding.anti_lm)
    if decoding.no_repeat_ngram:
        log_probs = no_repeat_ngram(log_probs, prefix, decoding.no_repeat_ngram)
    if decoding.min_reply_length > 1:
        log_probs = min_length(log_probs, prefix, decoding.min_reply_length, EOS)
    return log_probs


def truncated(decoding: DecodingSettings, log_probs: Floats) -> Floats:
    """Return the log-probabilities, -inf where the settings' sampling must not pick an id."""
    if decoding.temperature is not None and decoding.temperature != 1:
        log_probs = temperature(log_probs, decoding.temperature)
    if decoding.top_k is not None:
        log_probs = top_k(log_probs, decoding.top_k)
    if decoding.top_p is not None and decoding.top_p != 1:
        log_probs = top_p(log_probs, decoding.top_p)
    if decoding.min_p is not None:
        log_probs = min_p(log_probs, decoding.min_p)
    if decoding.typical is not None and decoding.typical != 1:
        log_probs = typical(log_probs, decoding.typical)
    return log_probs


def picked(decoding: DecodingSettings, log_probs: Floats, uniform: Floats | None) -> Ids:
    """Return the next id of each row, by greedy search or sampling. uniform: for sampling, [rows] in [0, 1)."""
    if not decoding.samples:
        return log_probs.argmax(axis=-1).astype(np.int32)
    assert uniform is not None
    return sampled(truncated(decoding, log_probs), uniform)
