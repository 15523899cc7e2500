"""What sampling may pick: the twins of `chatbot.decoding.truncations`."""

import numpy as np

from chatbot.decoding.arrays.log_probabilities import INFINITE, Floats, log_softmax

HALVINGS = 12  # as in probability_mass.py
LEAST_TEMPERATURE = 1e-30


def temperature(log_probs: Floats, value: float) -> Floats:
    """Divide by the temperature."""
    return log_probs / np.float32(max(value, LEAST_TEMPERATURE))


def top_k(log_probs: Floats, k: int) -> Floats:
    """Keep the k most probable ids, and those that are as probable as the last of them."""
    least = np.partition(log_probs, -k, axis=-1)[:, -k, None]
    return np.where(log_probs >= least, log_probs, -INFINITE)


def top_p(log_probs: Floats, mass: float) -> Floats:
    """Keep the most probable ids, the fewest whose probabilities sum to at least `mass`, which is below 1."""
    weights = np.exp(log_probs - log_probs.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)  # [rows, 1]
    # The ids that `_limit` leaves out at once are not in any of its sums: most of the vocabulary.
    least = _least(log_probs, mass)
    probable = np.flatnonzero((weights >= least * total).any(axis=0))
    order = log_probs[:, probable]
    limit = _limit(order, weights[:, probable] / total, least, mass)
    result = np.full_like(log_probs, -INFINITE)
    result[:, probable] = np.where(order >= limit, order, -INFINITE)
    return result


def min_p(log_probs: Floats, share: float) -> Floats:
    """Keep the ids that are at least `share` times as probable as the most probable one."""
    least = log_probs.max(axis=-1, keepdims=True) + np.log(np.float32(share))
    return np.where(log_probs >= least, log_probs, -INFINITE)


def typical(log_probs: Floats, mass: float) -> Floats:
    """Keep the ids whose information is nearest to the entropy, the fewest whose probabilities sum to `mass` (< 1)."""
    normalised = log_softmax(log_probs)
    probabilities = np.exp(normalised)
    information = np.where(probabilities > 0, normalised, np.float32(0)) * probabilities
    nearness = -np.abs(normalised - information.sum(axis=-1, keepdims=True))
    limit = _limit(nearness, probabilities, _least(log_probs, mass), mass)
    return np.where(nearness >= limit, log_probs, -INFINITE)


def _least(log_probs: Floats, mass: float) -> np.float32:
    """Return the probability below which ids are left out: all of them together are less than 1 - mass."""
    return (1 - np.float32(mass)) / np.float32(log_probs.shape[-1])


def _limit(order: Floats, probabilities: Floats, least: np.float32, mass: float) -> Floats:
    """Return the order of the last of the first ids whose probabilities sum to `mass`, [rows, 1], by bisection."""
    low = np.where(probabilities >= least, order, INFINITE).min(axis=-1, keepdims=True)
    high = order.max(axis=-1, keepdims=True)  # [rows, 1]
    for _ in range(HALVINGS):
        middle = (low + high) / np.float32(2)
        reached = (probabilities * (order >= middle)).sum(axis=-1, keepdims=True) >= np.float32(mass)
        low, high = np.where(reached, middle, low), np.where(reached, high, middle)
    return low
