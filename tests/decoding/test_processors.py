"""Processors against loops over the ids of each hypothesis, for arrays and tensors."""

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.corpus.vocabulary import EOS, PAD
from chatbot.decoding.processors import (
    Prefix,
    frequency_penalty,
    min_length,
    no_repeat_ngram,
    presence_penalty,
    repetition_penalty,
)

Array = npt.NDArray[Any]
VOCABULARY, LENGTH = 7, 6


@st.composite
def hypotheses(draw: st.DrawFn) -> tuple[Array, list[list[int]]]:
    """Log-probabilities [rows, vocabulary], and the ids of each row so far; padding is never allowed."""
    rows, positions = draw(st.integers(1, 3)), st.integers(0, LENGTH - 1)
    log_probs = np.random.default_rng(draw(st.integers(0, 99))).normal(-1, 2, (rows, VOCABULARY)).astype(np.float32)
    others = [i for i in range(VOCABULARY) if i != PAD]
    for row in log_probs:
        row[[PAD, *draw(st.sets(st.sampled_from(others), max_size=VOCABULARY - 3))]] = -np.inf
    ids = positions.flatmap(lambda n: st.lists(st.integers(3, VOCABULARY - 1), min_size=n, max_size=n))
    return log_probs, [draw(ids) for _ in range(rows)]


def processed(processor: Callable[..., Any], log_probs: Array, ids: list[list[int]], *settings: Any) -> Array:
    """The log-probabilities after a processor, which are the same for arrays and tensors."""
    padded = np.array([row + [PAD] * (LENGTH - len(row)) for row in ids], np.int64)
    prefix = Prefix(np.array([[len(row)] for row in ids]), padded)
    of_arrays = processor(log_probs, prefix, *settings)
    of_tensors = processor(tf.constant(log_probs), Prefix(*map(tf.constant, prefix)), *settings)
    np.testing.assert_allclose(of_tensors.numpy(), of_arrays, rtol=1e-6)
    return np.asarray(of_arrays)


@hypothesis.given(hypotheses(), st.floats(1.0, 5.0))
@hypothesis.settings(max_examples=30)
def test_penalties(drawn: tuple[Array, list[list[int]]], penalty: float) -> None:
    log_probs, ids = drawn
    repeated, frequent, present = log_probs.copy(), log_probs.copy(), log_probs.copy()
    for row, row_ids in enumerate(ids):
        for i in set(row_ids):
            value = log_probs[row, i]
            repeated[row, i] = value / penalty if value > 0 else value * penalty
            present[row, i] -= penalty
        for i in row_ids:
            frequent[row, i] -= penalty
    cases = (repetition_penalty, repeated), (frequency_penalty, frequent), (presence_penalty, present)
    for processor, expected in cases:
        np.testing.assert_allclose(processed(processor, log_probs, ids, penalty), expected, rtol=1e-3, atol=1e-4)


@hypothesis.given(hypotheses(), st.integers(1, LENGTH + 1))
@hypothesis.settings(max_examples=80)
def test_no_repeat_ngram(drawn: tuple[Array, list[list[int]]], size: int) -> None:
    log_probs, ids = drawn
    expected = log_probs.copy()
    for row, row_ids in enumerate(ids):
        ngrams = {tuple(row_ids[i : i + size]) for i in range(len(row_ids) - size + 1)}
        for i in range(VOCABULARY):
            if tuple([*row_ids, i][-size:]) in ngrams:
                expected[row, i] = -np.inf
        if np.isinf(expected[row]).all():  # it yields
            expected[row] = log_probs[row]
    np.testing.assert_array_equal(processed(no_repeat_ngram, log_probs, ids, size), expected)


@hypothesis.given(hypotheses(), st.integers(0, LENGTH))
@hypothesis.settings(max_examples=30)
def test_min_length(drawn: tuple[Array, list[list[int]]], length: int) -> None:
    log_probs, ids = drawn
    expected = log_probs.copy()
    for row, row_ids in enumerate(ids):
        if len(row_ids) < length and np.isfinite(np.delete(expected[row], EOS)).any():  # else it yields
            expected[row, EOS] = -np.inf
    np.testing.assert_array_equal(processed(min_length, log_probs, ids, length), expected)
