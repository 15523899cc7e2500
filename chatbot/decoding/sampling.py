"""Chooses the next token of each row, greedily or by sampling with a given random number.

Log-probabilities have shape [rows, vocabulary] and dtype float32, and are -inf for forbidden tokens. All functions
accept NumPy arrays and TensorFlow tensors.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.array_functions import INFINITY, Array, functions_of

# The minimum temperature. It is low enough for greedy decoding, but avoids infinite log-probabilities.
MIN_TEMPERATURE = 1e-30
# The number of bisection steps in `_top_p_threshold`.
BISECTION_STEPS = 12
# The block size for sampling. Summing blocks first is faster than a cumulative sum over the whole vocabulary.
BLOCK = 128


def select_ids(decoding: DecodingSettings, log_probs: Array, uniform: Array | None) -> Array:
    """Choose the next token of each row, greedily or by sampling.

    Args:
        decoding: The decoding settings.
        log_probs: Log-probabilities, with shape [rows, vocabulary].
        uniform: Random numbers in [0, 1) for sampling, with shape [rows, 1] and dtype float32.

    Returns:
        Token ids, with shape [rows] and dtype int64.
    """
    if not decoding.samples:
        return functions_of(log_probs).argmax(log_probs)
    assert uniform is not None
    return sample_ids(truncate(decoding, log_probs), uniform)


def truncate(decoding: DecodingSettings, log_probs: Array) -> Array:
    """Apply temperature, top-k, top-p and min-p, and set excluded tokens to -inf. NaN values are preserved."""
    if decoding.temperature is not None and decoding.temperature != 1:
        log_probs = log_probs / np.float32(max(decoding.temperature, MIN_TEMPERATURE))
    if decoding.top_k is not None:
        log_probs = top_k(log_probs, decoding.top_k)
    if decoding.top_p is not None and decoding.top_p != 1:
        log_probs = top_p(log_probs, decoding.top_p)
    if decoding.min_p is not None:
        log_probs = min_p(log_probs, decoding.min_p)
    return log_probs


def top_k(log_probs: Array, k: int) -> Array:
    """Keep the k most probable tokens and any ties with the kth (Fan et al., 2018)."""
    functions = functions_of(log_probs)
    return functions.where(log_probs < functions.kth_largest(log_probs, k), -INFINITY, log_probs)


def top_p(log_probs: Array, mass: float) -> Array:
    """Keep the fewest most probable tokens with a total probability of at least `mass` (Holtzman et al., 2020)."""
    functions = functions_of(log_probs)
    weights = functions.exp(log_probs - functions.max(log_probs))
    total = functions.sum(weights)  # [rows, 1]
    # Tokens below this probability have a total probability of less than 1 - mass, so none of them is kept. They are
    # removed first, because they make up most of the vocabulary.
    floor = (1 - np.float32(mass)) / np.float32(log_probs.shape[-1])
    needed = functions.needed_columns(~(weights < floor * total))
    threshold = _top_p_threshold(log_probs[:, needed], weights[:, needed] / total, floor, mass)
    return functions.where(log_probs < threshold, -INFINITY, log_probs)


def min_p(log_probs: Array, share: float) -> Array:
    """Keep tokens whose probability is at least `share` times the maximum (Nguyen et al., 2024)."""
    functions = functions_of(log_probs)
    return functions.where(log_probs < functions.max(log_probs) + np.log(np.float32(share)), -INFINITY, log_probs)


def _top_p_threshold(log_probs: Array, probabilities: Array, floor: np.float32, mass: float) -> Array:
    """Find the lowest log-probability among the tokens that top-p keeps.

    Bisection is ten times as fast as sorting. Its error is at most 1/4,096 of the range of the log-probabilities.

    Args:
        log_probs: Log-probabilities, not necessarily normalised, with shape [rows, ids] and dtype float32.
        probabilities: Normalised probabilities, with shape [rows, ids].
        floor: The probability below which a token is never kept.
        mass: The minimum total probability of the tokens that are kept.

    Returns:
        The thresholds, with shape [rows, 1].
    """
    functions = functions_of(log_probs)
    low = functions.min(functions.where(probabilities >= floor, log_probs, INFINITY))
    high = functions.max(log_probs)
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / np.float32(2)
        mass_above = functions.sum(functions.where(log_probs >= middle, probabilities, np.float32(0)))
        is_enough = mass_above >= np.float32(mass)
        low = functions.where(is_enough, middle, low)
        high = functions.where(is_enough, high, middle)
    return low


def sample_ids(log_probs: Array, uniform: Array) -> Array:
    """Sample a token for each row by inverse transform sampling.

    Args:
        log_probs: Log-probabilities, with shape [rows, vocabulary].
        uniform: One random number in [0, 1) for each row, with shape [rows, 1] and dtype float32.

    Returns:
        Token ids, with shape [rows] and dtype int64.
    """
    functions = functions_of(log_probs)
    needed = functions.needed_columns(log_probs != -INFINITY)
    weights = functions.exp(log_probs[:, needed] - functions.max(log_probs))
    padded = functions.pad(weights, [[0, 0], [0, -weights.shape[1] % BLOCK]])
    blocks = functions.reshape(padded, (-1, padded.shape[1] // BLOCK, BLOCK))
    sums = functions.cumulative_sum(functions.sum(blocks)[..., 0])  # [rows, blocks]
    number = uniform * sums[:, -1:]  # [rows, 1]
    block = _sampled_index(sums, number)  # [rows, 1]
    before = functions.where(block > 0, functions.take(sums, functions.maximum(block - 1, 0)), np.float32(0))
    within = functions.cumulative_sum(functions.take(blocks, block)[:, 0])  # [rows, BLOCK]
    indices = (block * BLOCK + _sampled_index(within, number - before))[:, 0]
    return indices if isinstance(needed, slice) else needed[indices]


def _sampled_index(sums: Array, number: Array) -> Array:
    """Return the first index of each row whose cumulative sum exceeds a number, with shape [rows, 1] and dtype int64.

    Rounding can make the number negative or equal to the total. The element at the returned index has a positive
    probability even in these cases.

    Args:
        sums: Cumulative sums with positive totals, with shape [rows, elements] and dtype float32.
        number: One number for each row, with shape [rows, 1].
    """
    functions = functions_of(sums)
    below_total = sums[:, -1:] * np.float32(1 - 2**-23)
    limited = functions.minimum(functions.maximum(number, np.float32(0)), below_total)
    return functions.sum(sums <= limited)


def uniform_numbers(
    seeds: Sequence[int], questions: Sequence[Sequence[int]], candidates: int, max_length: int
) -> npt.NDArray[np.float32]:
    """Generate random numbers in [0, 1), with shape [questions, candidates, max_length] and dtype float32.

    The numbers of a question do not depend on the other questions. The numbers of a candidate do not depend on the
    number of candidates.

    Args:
        seeds: The non-negative seed of each question.
        questions: The token ids of each question.
        candidates: The number of candidates per question.
        max_length: The maximum length of a reply in tokens.
    """
    shape = candidates, max_length
    generators = [np.random.default_rng([seed, *ids]) for seed, ids in zip(seeds, questions, strict=True)]
    return np.stack([generator.random(shape, np.float32) for generator in generators])
