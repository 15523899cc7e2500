"""Truncations and sampling against loops over rows, for arrays and tensors of any log-probabilities."""

import functools
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.sampling import BLOCK, HALVINGS, min_p, picked, sampled, top_k, top_p, truncated, typical

Array = npt.NDArray[Any]
VOCABULARY = 7


@st.composite
def log_probabilities(draw: st.DrawFn) -> Array:
    """[rows, vocabulary] log-probabilities with distinct values; some ids are not allowed, never all of a row."""
    rows = draw(st.integers(1, 3))
    values = [draw(st.permutations(range(VOCABULARY))) for _ in range(rows)]
    logits = np.array(values, np.float32) * draw(st.sampled_from([0.01, 0.3, 2.0, 9.0]))
    forbidden = draw(hypothesis.extra.numpy.arrays(np.bool_, logits.shape))
    forbidden[np.arange(rows), draw(st.integers(0, VOCABULARY - 1))] = False
    logits[forbidden] = -np.inf
    return np.asarray(tf.nn.log_softmax(logits).numpy())


def kept(truncation: Callable[[Any], Any], log_probs: Array) -> Array:
    """Which ids a truncation keeps, of an array and of a tensor; their values must not change."""
    after, of_tensor = truncation(log_probs), truncation(tf.constant(log_probs)).numpy()
    are_kept = np.isfinite(after)
    np.testing.assert_array_equal(after[are_kept], log_probs[are_kept])
    np.testing.assert_array_equal(of_tensor, after)
    return np.asarray(are_kept)


def fewest(row: Array, order: list[int], mass: float) -> tuple[set[int], float]:
    """The first ids of an order whose probabilities sum to the mass, and the least difference of a sum from it."""
    chosen: set[int] = set()
    total, difference = 0.0, np.inf
    for index in order:
        chosen.add(index)
        total += float(np.exp(row[index]))
        difference = min(difference, abs(total - mass))
        if total >= mass:
            break
    return chosen, difference


@hypothesis.given(log_probabilities(), st.integers(1, VOCABULARY))
@hypothesis.settings(max_examples=40)
def test_top_k(log_probs: Array, k: int) -> None:
    for row, is_kept in zip(log_probs, kept(lambda x: top_k(x, k), log_probs), strict=True):
        expected = [i for i in np.argsort(-row)[:k] if np.isfinite(row[i])]
        assert set(np.flatnonzero(is_kept)) == set(expected)


@hypothesis.given(log_probabilities(), st.floats(0.01, 0.99))
@hypothesis.settings(max_examples=60)
def test_top_p_and_typical_keep_the_fewest_ids_of_their_order(log_probs: Array, mass: float) -> None:
    for name, truncation in (("top-p", top_p), ("typical", typical)):
        for row, is_kept in zip(log_probs, kept(functools.partial(truncation, mass=mass), log_probs), strict=True):
            ids = [i for i in range(VOCABULARY) if np.isfinite(row[i])]
            entropy = -sum(np.exp(row[i]) * row[i] for i in ids)
            nearness = {i: row[i] if name == "top-p" else -abs(row[i] + entropy) for i in ids}
            ordered = sorted(ids, key=lambda i: -nearness[i])
            expected, difference = fewest(row, ordered, mass)
            last = min(nearness[i] for i in expected)
            # Ids that are as near as the last one, up to the resolution, are kept with it.
            resolution = (max(nearness.values()) - last + 20) / 2**HALVINGS
            tied = {i for i in ids if last > nearness[i] > last - resolution}
            if difference > 1e-5:
                assert expected <= set(np.flatnonzero(is_kept)) <= expected | tied


@hypothesis.given(log_probabilities(), st.floats(0.001, 1.0))
@hypothesis.settings(max_examples=30)
def test_min_p(log_probs: Array, share: float) -> None:
    for row, is_kept in zip(log_probs, kept(lambda x: min_p(x, share), log_probs), strict=True):
        probabilities = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).max()
        certain = np.abs(probabilities - share) > 1e-5
        np.testing.assert_array_equal(is_kept[certain], (probabilities >= share)[certain])


@pytest.mark.parametrize("value", [1e-30, 1e-40, 1e-320])
def test_least_temperatures_leave_the_most_probable_id(value: float) -> None:
    log_probs = np.log(np.array([[0.3, 1e-30, 0.31, 0.39]], np.float32))
    decoding, uniform = DecodingSettings(temperature=value, top_p=0.9), np.array([[0.99]], np.float32)
    assert picked(decoding, log_probs, uniform).tolist() == [3]
    assert picked(decoding, tf.constant(log_probs), tf.constant(uniform)).numpy().tolist() == [3]


@pytest.mark.parametrize("vocabulary", [1, 5, BLOCK, 3 * BLOCK + 1])
@pytest.mark.parametrize("number", [0.0, 0.25, 1 - 2**-24])
def test_sampled_id_is_where_the_cumulative_distribution_reaches_the_number(vocabulary: int, number: float) -> None:
    """Also at the borders 0 and the largest float32 below 1, where ids of probability 0 are nearest."""
    generator = np.random.default_rng(vocabulary)
    log_probs = generator.normal(0, 3, (50, vocabulary)).astype(np.float32)
    log_probs[generator.random(log_probs.shape) < 0.5] = -np.inf
    log_probs[np.arange(50), generator.integers(vocabulary, size=50)] = 0
    uniform = np.full((50, 1), number, np.float32)
    of_tensors = sampled(tf.constant(log_probs), tf.constant(uniform)).numpy()
    for ids in (sampled(log_probs, uniform), of_tensors):
        assert ids.dtype == np.int64
        for row, index in zip(log_probs.astype(np.float64), ids, strict=True):
            sums = np.cumsum(np.exp(row)) / np.exp(row).sum()
            assert np.isfinite(row[index])
            assert sums[index] - np.exp(row[index]) / np.exp(row).sum() <= number + 1e-5
            assert number <= sums[index] + 1e-5


def test_settings_truncate_in_one_order() -> None:
    """Two thirds of the probability is the most probable id of two, but not of three; the temperature comes first."""
    log_probs = np.log(np.array([[0.5, 0.3, 0.2]], np.float32))
    left = [np.isfinite(truncated(DecodingSettings(**x), log_probs))[0].tolist() for x in CASES]
    assert left == [[True, False, False], [True, True, False], [True, True, True], [True, False, False]]


CASES: list[dict[str, Any]] = [
    {"top_k": 2, "top_p": 0.6},
    {"top_p": 0.6},
    {"temperature": 100.0, "top_p": 0.7},
    {"min_p": 0.9},
]
