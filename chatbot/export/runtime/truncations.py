"""What sampling may pick, in NumPy: the twins of `chatbot.decoding.truncations`, and the choice of an id."""

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.export.runtime.model import Floats, log_softmax

# log_probs [rows, vocabulary] -> log_probs, -inf where an id must not be sampled.
Truncation = Callable[[Floats], Floats]

HALVINGS = 12  # as in probability_mass.py
LEAST_TEMPERATURE = 1e-30
BLOCK = 128  # as in sampling.py, so that sums are rounded alike
INFINITE = np.float32(np.inf)


def truncations_of(decoding: DecodingSettings) -> list[Truncation]:
    """Return what sampling applies to the log-probabilities, in this order."""
    truncations: list[Truncation] = []
    if decoding.temperature not in (None, 1):
        value = np.float32(max(decoding.temperature, LEAST_TEMPERATURE))
        truncations.append(lambda log_probs: log_probs / value)
    if decoding.top_k is not None:
        truncations.append(functools.partial(_top_k, k=decoding.top_k))
    if decoding.top_p is not None and decoding.top_p != 1:
        truncations.append(functools.partial(_top_p, mass=decoding.top_p))
    if decoding.min_p is not None:
        truncations.append(functools.partial(_min_p, share=decoding.min_p))
    if decoding.typical is not None and decoding.typical != 1:
        truncations.append(functools.partial(_typical, mass=decoding.typical))
    return truncations


def _top_k(log_probs: Floats, k: int) -> Floats:
    least = np.partition(log_probs, -k, axis=-1)[:, -k, None]
    return np.where(log_probs >= least, log_probs, -INFINITE)


def _top_p(log_probs: Floats, mass: float) -> Floats:
    kept = _first_to_reach(log_probs, np.exp(log_softmax(log_probs)), np.float32(mass))
    return np.where(kept, log_probs, -INFINITE)


def _min_p(log_probs: Floats, share: float) -> Floats:
    least = log_probs.max(axis=-1, keepdims=True) + np.log(np.float32(share))
    return np.where(log_probs >= least, log_probs, -INFINITE)


def _typical(log_probs: Floats, mass: float) -> Floats:
    normalised = log_softmax(log_probs)
    probabilities = np.exp(normalised)
    information = np.where(probabilities > 0, normalised, np.float32(0)) * probabilities
    nearness = -np.abs(normalised - information.sum(axis=-1, keepdims=True))
    return np.where(_first_to_reach(nearness, probabilities, np.float32(mass)), log_probs, -INFINITE)


def _first_to_reach(order: Floats, probabilities: Floats, mass: np.float32) -> npt.NDArray[np.bool_]:
    """Return which ids are the first in an order whose probabilities sum to at least `mass`, by bisection."""
    least = (1 - mass) / np.float32(order.shape[-1])
    low = np.where(probabilities >= least, order, INFINITE).min(axis=-1, keepdims=True)
    high = order.max(axis=-1, keepdims=True)  # [rows, 1]
    for _ in range(HALVINGS):
        middle = (low + high) / np.float32(2)
        reached = (probabilities * (order >= middle)).sum(axis=-1, keepdims=True) >= mass
        low, high = np.where(reached, middle, low), np.where(reached, high, middle)
    return order >= low


def sampled(log_probs: Floats, uniform: Floats, truncations: list[Truncation]) -> npt.NDArray[np.int32]:
    """Return an id of each row, by the inverse of the cumulative distribution. uniform: [rows] in [0, 1)."""
    for truncation in truncations:
        log_probs = truncation(log_probs)
    rows, vocabulary = log_probs.shape
    probabilities = np.pad(np.exp(log_softmax(log_probs)), [(0, 0), (0, -vocabulary % BLOCK)])
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
