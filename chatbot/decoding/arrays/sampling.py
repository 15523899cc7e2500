"""Sampling by given random numbers: the twin of `chatbot.decoding.sampling`."""

import numpy as np
import numpy.typing as npt

from chatbot.decoding.arrays.log_probabilities import INFINITE, Floats, Ids

BLOCK = 128  # as in sampling.py, so that sums are rounded alike


def sampled(log_probs: Floats, uniform: Floats) -> Ids:
    """Return an id of each row, by the inverse of the cumulative distribution. uniform: [rows] in [0, 1)."""
    possible = np.flatnonzero((log_probs > -INFINITE).any(axis=0))
    if 2 * len(possible) < log_probs.shape[1]:  # the other ids change no sum
        return possible[_sampled(log_probs[:, possible], uniform)].astype(np.int32)
    return _sampled(log_probs, uniform)


def _sampled(log_probs: Floats, uniform: Floats) -> Ids:
    rows, vocabulary = log_probs.shape
    probabilities = np.zeros((rows, vocabulary + -vocabulary % BLOCK), np.float32)
    of_ids = probabilities[:, :vocabulary]
    np.subtract(log_probs, log_probs.max(axis=-1, keepdims=True), out=of_ids)
    np.exp(of_ids, out=of_ids)
    of_ids /= of_ids.sum(axis=-1, keepdims=True)
    blocks = probabilities.reshape(rows, -1, BLOCK)
    sums = np.cumsum(blocks.sum(axis=-1), axis=-1, dtype=np.float32)  # [rows, blocks]
    number = uniform * sums[:, -1]  # [rows]
    every = np.arange(rows)
    block = _places(sums, number)  # [rows]
    before = np.where(block > 0, sums[every, block - 1], np.float32(0))
    within = np.cumsum(blocks[every, block], axis=-1, dtype=np.float32)  # [rows, BLOCK]
    return (block * BLOCK + _places(within, number - before)).astype(np.int32)


def _places(sums: Floats, number: Floats) -> npt.NDArray[np.int64]:
    """Return the first place of each row whose cumulative sum is above the number, [rows]."""
    below_total = sums[:, -1] * np.float32(1 - 2**-23)
    limited = np.clip(number, np.float32(0), below_total)
    return (sums <= limited[:, None]).sum(axis=-1)
