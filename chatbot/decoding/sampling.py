"""The choice of the next id of each row: the most probable one, or one that is drawn by a given random number.

Log-probabilities are [rows, vocabulary] float32, -inf where an id is not allowed. Arrays are of NumPy or TensorFlow.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.array_functions import INFINITY, Array, functions_of

# A smaller temperature counts as this one, which leaves the most probable id alone and keeps its quotient finite.
LEAST_TEMPERATURE = 1e-30
# The interval of `_limit` is halved this many times.
HALVINGS = 12
# Probabilities are summed in blocks of this size first: a cumulative sum over the vocabulary would take longer.
BLOCK = 128


def picked(decoding: DecodingSettings, log_probs: Array, uniform: Array | None) -> Array:
    """Return the next id of each row, [rows] int64, by greedy search or by sampling.

    uniform: for sampling, [rows, 1] float32 in [0, 1).
    """
    if not decoding.samples:
        return functions_of(log_probs).argmax(log_probs)
    assert uniform is not None
    return sampled(truncated(decoding, log_probs), uniform)


def truncated(decoding: DecodingSettings, log_probs: Array) -> Array:
    """Return the log-probabilities that the settings sample from: -inf where an id must not be drawn.

    Those that are no numbers, of weights that are not finite, stay so.
    """
    if decoding.temperature is not None and decoding.temperature != 1:
        log_probs = log_probs / np.float32(max(decoding.temperature, LEAST_TEMPERATURE))
    if decoding.top_k is not None:
        log_probs = top_k(log_probs, decoding.top_k)
    if decoding.top_p is not None and decoding.top_p != 1:
        log_probs = top_p(log_probs, decoding.top_p)
    if decoding.min_p is not None:
        log_probs = min_p(log_probs, decoding.min_p)
    return log_probs


def top_k(log_probs: Array, k: int) -> Array:
    """Keep the k most probable ids, and those that are as probable as the last of them (Fan et al., 2018)."""
    functions = functions_of(log_probs)
    return functions.where(log_probs < functions.kth_largest(log_probs, k), -INFINITY, log_probs)


def top_p(log_probs: Array, mass: float) -> Array:
    """Keep the most probable ids, the fewest whose probabilities sum to at least `mass` < 1 (Holtzman et al., 2020)."""
    functions = functions_of(log_probs)
    weights = functions.exp(log_probs - functions.max(log_probs))
    total = functions.sum(weights)  # [rows, 1]
    # Ids that are less probable are left out at once: all of them together are less than 1 - mass. They are most of the
    # vocabulary, and in none of the sums.
    least = (1 - np.float32(mass)) / np.float32(log_probs.shape[-1])
    needed = functions.needed_columns(~(weights < least * total))
    limit = _limit(log_probs[:, needed], weights[:, needed] / total, least, mass)
    return functions.where(log_probs < limit, -INFINITY, log_probs)


def min_p(log_probs: Array, share: float) -> Array:
    """Keep the ids that are at least `share` times as probable as the most probable one (Nguyen et al., 2024)."""
    functions = functions_of(log_probs)
    return functions.where(log_probs < functions.max(log_probs) + np.log(np.float32(share)), -INFINITY, log_probs)


def _limit(log_probs: Array, probabilities: Array, least: np.float32, mass: float) -> Array:
    """Return the least log-probability among the most probable ids that sum to at least `mass`, [rows, 1].

    It is found by bisection, to 1 / 4,096 of the widest possible difference. Sorting would take ten times as long.

    log_probs: [rows, ids] float32, up to a constant for each row. probabilities: [rows, ids], normalised. least: an id
    that is less probable is not the last.
    """
    functions = functions_of(log_probs)
    low = functions.min(functions.where(probabilities >= least, log_probs, INFINITY))
    high = functions.max(log_probs)
    for _ in range(HALVINGS):
        middle = (low + high) / np.float32(2)
        sums = functions.sum(functions.where(log_probs >= middle, probabilities, np.float32(0)))
        reached = sums >= np.float32(mass)
        low = functions.where(reached, middle, low)
        high = functions.where(reached, high, middle)
    return low


def sampled(log_probs: Array, uniform: Array) -> Array:
    """Return an id of each row, [rows] int64, by the inverse of the cumulative distribution.

    uniform: [rows, 1] float32 in [0, 1). A row's id depends on its own number alone.
    """
    functions = functions_of(log_probs)
    needed = functions.needed_columns(log_probs != -INFINITY)
    weights = functions.exp(log_probs[:, needed] - functions.max(log_probs))
    padded = functions.with_zeros(weights, -weights.shape[1] % BLOCK)
    blocks = functions.reshape(padded, (-1, padded.shape[1] // BLOCK, BLOCK))
    sums = functions.cumulative_sum(functions.sum(blocks)[..., 0])  # [rows, blocks]
    number = uniform * sums[:, -1:]  # [rows, 1]
    block = _places(sums, number)  # [rows, 1]
    before = functions.where(block > 0, functions.take(sums, functions.maximum(block - 1, 0)), np.float32(0))
    within = functions.cumulative_sum(functions.take(blocks, block)[:, 0])  # [rows, BLOCK]
    places = (block * BLOCK + _places(within, number - before))[:, 0]
    return places if isinstance(needed, slice) else needed[places]


def _places(sums: Array, number: Array) -> Array:
    """Return the first place whose cumulative sum is above the number, [rows, 1] int64.

    Rounding may have made the number negative or as large as the total. The place always has a probability above 0.

    sums: [rows, places] float32, the total above 0. number: [rows, 1].
    """
    functions = functions_of(sums)
    below_total = sums[:, -1:] * np.float32(1 - 2**-23)
    limited = functions.minimum(functions.maximum(number, np.float32(0)), below_total)
    return functions.sum(sums <= limited)


def uniform_numbers(
    seeds: Sequence[int], questions: Sequence[Sequence[int]], candidates: int, max_length: int
) -> npt.NDArray[np.float32]:
    """Return numbers in [0, 1), [questions, candidates, max_length].

    Those of a question do not depend on the others, and those of a candidate not on the number of candidates.

    seeds: of each question, at least 0. questions: the ids of each.
    """
    shape = candidates, max_length
    generators = [np.random.default_rng([seed, *ids]) for seed, ids in zip(seeds, questions, strict=True)]
    return np.stack([generator.random(shape, np.float32) for generator in generators])
