"""Processors against loops over the ids of each hypothesis."""

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from chatbot.decoding.arrays import processors as arrays
from chatbot.decoding.processor import Prefix, Processor
from chatbot.decoding.processors.anti_lm import anti_lm
from chatbot.decoding.processors.frequency_penalty import frequency_penalty
from chatbot.decoding.processors.min_length import min_length
from chatbot.decoding.processors.no_repeat_ngram import no_repeat_ngram
from chatbot.decoding.processors.presence_penalty import presence_penalty
from chatbot.decoding.processors.repetition_penalty import repetition_penalty

Array = npt.NDArray[Any]
VOCABULARY, LENGTH, END = 5, 6, 1  # id 0 is padding


@st.composite
def hypotheses(draw: st.DrawFn) -> tuple[Array, list[list[int]]]:
    """Log-probabilities [rows, vocabulary], and the ids of each row so far; padding is never allowed."""
    rows, position = draw(st.integers(1, 3)), draw(st.integers(0, LENGTH - 1))
    log_probs = np.random.default_rng(draw(st.integers(0, 99))).normal(-1, 2, (rows, VOCABULARY)).astype(np.float32)
    for row in log_probs:
        row[[0, *draw(st.sets(st.integers(1, VOCABULARY - 1), max_size=VOCABULARY - 3))]] = -np.inf
    ids = st.lists(st.integers(2, VOCABULARY - 1), min_size=position, max_size=position)
    return log_probs, [draw(ids) for _ in range(rows)]


def processed(processor: Processor, log_probs: Array, ids: list[list[int]]) -> Array:
    """The log-probabilities after the processor."""
    padded = np.array([row + [0] * (LENGTH - len(row)) for row in ids], np.int32)
    last = np.array([row[-1] if row else 9 for row in ids], np.int32)
    prefix = Prefix(tf.constant(len(ids[0])), tf.constant(padded), tf.constant(last))
    result, _ = processor.apply(tf.constant(log_probs), prefix, processor.start)
    return np.asarray(result.numpy())


def in_arrays(function: Callable[..., Array], log_probs: Array, ids: list[list[int]], *settings: Any) -> Array:
    """The log-probabilities after the twin in NumPy."""
    padded = np.array([row + [0] * (LENGTH - len(row)) for row in ids], np.int32)
    return function(log_probs, arrays.Prefix(np.full(len(ids), len(ids[0]), np.int32), padded), *settings)


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
    for name, expected in (("repetition", repeated), ("frequency", frequent), ("presence", present)):
        processor = {"repetition": repetition_penalty, "frequency": frequency_penalty, "presence": presence_penalty}
        found = processed(processor[name](penalty), log_probs, ids)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
        twin = getattr(arrays, f"{name}_penalty")
        np.testing.assert_allclose(in_arrays(twin, log_probs, ids, penalty), expected, rtol=1e-3, atol=1e-4)


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
    np.testing.assert_array_equal(processed(no_repeat_ngram(size), log_probs, ids), expected)
    np.testing.assert_array_equal(in_arrays(arrays.no_repeat_ngram, log_probs, ids, size), expected)


@hypothesis.given(hypotheses(), st.integers(0, LENGTH))
@hypothesis.settings(max_examples=30)
def test_min_length(drawn: tuple[Array, list[list[int]]], length: int) -> None:
    log_probs, ids = drawn
    expected = log_probs.copy()
    if len(ids[0]) < length:
        expected[:, END] = -np.inf
    np.testing.assert_array_equal(processed(min_length(length, END), log_probs, ids), expected)
    np.testing.assert_array_equal(in_arrays(arrays.min_length, log_probs, ids, length, END), expected)


def test_end_stays_allowed_if_it_alone_is() -> None:
    log_probs = np.full((2, VOCABULARY), -np.inf, np.float32)
    log_probs[:, END] = 0
    log_probs[1, 3] = -2
    expected = log_probs.copy()
    expected[1, END] = -np.inf
    np.testing.assert_array_equal(processed(min_length(3, END), log_probs, [[2], [2]]), expected)


@pytest.mark.parametrize("tokens", [1, 3])
def test_anti_lm_subtracts_the_log_probability_without_the_question_from_the_first_tokens(tokens: int) -> None:
    """Its decoder has a state of its own, here the sum of the ids, which follows the hypotheses."""
    table = np.random.default_rng(0).normal(size=(40, VOCABULARY)).astype(np.float32)

    def step(state: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        state = state + ids[:, None]
        return tf.gather(table, state[:, 0]), state

    processor = anti_lm(step, tf.constant([[1], [5]]), 0.5, tokens)
    log_probs = np.array([[-1.0, -2, -np.inf, -3, -4]] * 2, np.float32)
    state, sums = processor.start, np.array([1, 5])
    for position in range(4):
        last = np.array([position + 2, 3], np.int32)
        prefix = Prefix(tf.constant(position), tf.zeros([2, LENGTH], tf.int32), tf.constant(last))
        result, state = processor.apply(tf.constant(log_probs), prefix, state)
        sums += last
        generic = np.log(np.exp(table[sums]) / np.exp(table[sums]).sum(axis=-1, keepdims=True))
        expected = log_probs - 0.5 * generic if position < tokens else log_probs
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4)
