"""Searches over a vocabulary of letters, where a table gives the probability of each letter after another."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.decoding.automaton import Automaton
from chatbot.decoding.beam import BeamSearch, beam_search
from chatbot.decoding.greedy import greedy
from chatbot.decoding.search import Pick, Search, search
from chatbot.decoding.step import SpecialIds, Step
from chatbot.decoding.unfinished import run_unfinished

LETTERS = "_^$?abc"  # padding, begin, end, unknown, then the alphabet
SPECIAL_IDS = SpecialIds(begin=1, end=2, pad=0)
LOW = -1e9


def automaton(following: Sequence[Mapping[str, int]]) -> Automaton:
    """The automaton with these states: the state after each letter that may follow."""
    allowed = np.zeros((len(following), len(LETTERS)), np.bool_)
    next_states = np.zeros(allowed.shape, np.int32)
    for state, letters in enumerate(following):
        for letter, next_state in letters.items():
            allowed[state, LETTERS.index(letter)] = True
            next_states[state, LETTERS.index(letter)] = next_state
    return Automaton(allowed, next_states)


ANY_WORD = automaton([dict.fromkeys("abc$", 0)])
# As a character in bytes: each b is followed by two or three letters.
SPELLING = automaton([{"a": 0, "b": 1, "$": 0}, {"c": 2, "a": 3}, {"a": 0, "c": 0}, {"a": 2}])
SPELLED = "(a|bc[ac]|baa[ac])+"


def table(probabilities: dict[str, dict[str, float]]) -> np.ndarray:
    """[letters, letters] logits of the next letter after each letter."""
    logits = np.full((len(LETTERS), len(LETTERS)), LOW, np.float32)
    for last, following in probabilities.items():
        for letter, probability in following.items():
            logits[LETTERS.index(last), LETTERS.index(letter)] = np.log(probability)
    return logits


def random_table(seed: int) -> np.ndarray:
    """[letters, letters] random logits, also of special letters."""
    return np.random.default_rng(seed).normal(0, 2, (len(LETTERS), len(LETTERS))).astype(np.float32)


def step_of(logits: np.ndarray) -> Step:
    """The step of a table; its state is unused."""

    def step(state: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(logits, ids), state

    return step


def spelled(ids: np.ndarray) -> str:
    """The letters of one hypothesis."""
    return "".join(LETTERS[i] for i in ids)


def searched(
    logits: np.ndarray, length: int, rows: int = 1, pick: Pick = greedy, words: Automaton = ANY_WORD
) -> tuple[list[str], np.ndarray]:
    """The text and score of each row, by `search`."""
    ids, scores = search(step_of(logits), tf.zeros([rows, 1]), tf.constant(rows), SPECIAL_IDS, words, length, pick)
    assert ids.shape == (rows, 1, length)
    return [spelled(row) for row in ids[:, 0].numpy()], scores[:, 0].numpy()


def beams(
    logits: np.ndarray, size: int, length: int, penalty: float = 0.0, words: Automaton = ANY_WORD
) -> tuple[list[str], np.ndarray]:
    """The text and score of each hypothesis, by `beam_search`; two equal rows must give equal results."""
    step, state, rows = step_of(logits), tf.zeros([2, 1]), tf.constant(2)
    ids, scores = beam_search(step, state, rows, SPECIAL_IDS, words, length, size, penalty)
    assert ids.shape == (2, size, length)
    np.testing.assert_array_equal(ids[0], ids[1])
    return [spelled(row) for row in ids[0].numpy()], scores[0].numpy()


def word_score(logits: np.ndarray, word: str, words: Sequence[str]) -> float:
    """The log-probability of one of these words, one letter at a time, in float64."""
    total, last = 0.0, "^"
    for position, letter in enumerate(word):
        allowed = {other[position] for other in words if other[:position] == word[:position] and other[position:]}
        row = {x: float(logits[LETTERS.index(last), LETTERS.index(x)]) for x in allowed}
        total += row[letter] - np.log(sum(np.exp(x) for x in row.values()))
        last = letter
    return total


def all_words(length: int, pattern: str = "[abc]+") -> list[str]:
    """All words that a search of this length can generate, if the automaton is this regular expression."""
    spelled = ["".join(word) for n in range(1, length + 1) for word in itertools.product("abc", repeat=n)]
    return [word + "$" * (len(word) < length) for word in spelled if re.fullmatch(pattern, word)]


AUTOMATA = pytest.mark.parametrize(
    ("words", "pattern"), [(ANY_WORD, "[abc]+"), (SPELLING, SPELLED)], ids=["any word", "spelling"]
)
GREEDY_TRAP = table(
    {
        "^": {"a": 0.6, "b": 0.4},
        "a": {"b": 0.5, "c": 0.5},
        "b": {"$": 1.0},
        "c": {"$": 1.0},
    }
)


def test_greedy_picks_most_probable_letter_and_pads_after_end() -> None:
    words, scores = searched(GREEDY_TRAP, 5, rows=2)
    assert words == ["ab$__"] * 2
    np.testing.assert_allclose(scores, np.log(0.3), rtol=1e-5)


def test_greedy_stops_at_maximum_length() -> None:
    endless = table({"^": {"a": 1.0}, "a": {"a": 1.0}})
    assert searched(endless, 4)[0] == ["aaaa"]


def sampler(seed: int, temperature: float = 1.0) -> Pick:
    """A pick that samples from the distribution (Gumbel-max)."""

    def pick(log_probs: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        uniform = tf.random.stateless_uniform(tf.shape(log_probs), tf.stack([seed, position]), minval=1e-20)
        return tf.argmax(log_probs / temperature - tf.math.log(-tf.math.log(uniform)), -1)

    return pick


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@AUTOMATA
def test_sampled_words_have_their_probabilities(words: Automaton, pattern: str, temperature: float) -> None:
    """The frequency of each word of 20,000 is its probability; its score is the log-probability at temperature 1."""
    logits, rows, length = random_table(1), 20_000, 4
    sampled, scores = searched(logits, length, rows, sampler(7, temperature), words)
    possible = all_words(length, pattern)
    expected = [word_score(logits, word.rstrip("_"), possible) for word in sampled[:50]]
    np.testing.assert_allclose(scores[:50], expected, rtol=1e-4, atol=1e-6)
    for word in possible:
        # A temperature below 1 scales the logits of each letter up.
        probability = np.exp(word_score(logits / temperature, word, possible))
        frequency = sampled.count(word.ljust(length, "_")) / rows
        assert abs(frequency - probability) < 5 * np.sqrt(probability / rows)


def test_sampler_is_determined_by_its_seed() -> None:
    first, again, other = (searched(random_table(1), 6, 20, sampler(seed))[0] for seed in (1, 1, 2))
    assert first == again != other


def test_beam_search_is_better_than_greedy_and_keeps_finished_hypotheses() -> None:
    words, scores = beams(GREEDY_TRAP, size=3, length=6)
    assert words[0] == "b$____"
    assert set(words[1:]) == {"ab$___", "ac$___"}
    np.testing.assert_allclose(np.exp(scores), [0.4, 0.3, 0.3], rtol=1e-5)


def test_large_length_penalty_prefers_longer_replies() -> None:
    assert beams(GREEDY_TRAP, 3, 6, penalty=5.0)[0][0] == "ab$___"


def test_forbidden_letters_and_empty_replies_are_not_generated() -> None:
    logits = table({"^": {"?": 0.5, "$": 0.3, "_": 0.1, "a": 0.1}, "a": {"?": 0.8, "^": 0.1, "$": 0.1}})
    assert beams(logits, 2, 3)[0][0] == "a$_"
    words, scores = searched(logits, 3)
    assert words == ["a$_"]
    np.testing.assert_allclose(scores, 0.0, atol=1e-5)  # the only possible word


def test_missing_hypotheses_score_minus_infinity() -> None:
    """Only three letters are possible at the first position."""
    words, scores = beams(random_table(0), size=5, length=1)
    assert sorted(words[:3]) == ["a", "b", "c"]
    assert np.isfinite(scores).tolist() == [True] * 3 + [False] * 2


@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(3))
@AUTOMATA
def test_wide_beam_equals_enumeration(words: Automaton, pattern: str, seed: int, penalty: float) -> None:
    logits, length = random_table(seed), 4
    possible = all_words(length, pattern)

    def score(word: str) -> float:
        return word_score(logits, word, possible) / ((5 + len(word)) / 6) ** penalty

    best = sorted(possible, key=score, reverse=True)
    found, scores = beams(logits, 120, length, penalty, words)
    assert [word.rstrip("_") for word in found[:5]] == best[:5]
    np.testing.assert_allclose(scores[:5], [score(word) for word in best[:5]], rtol=1e-4)
    assert {word.rstrip("_") for word, score in zip(found, scores, strict=True) if np.isfinite(score)} == set(possible)
    assert not np.isnan(scores).any()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_word_never_ends_within_a_spelling(length: int) -> None:
    """The model prefers b, after which two or three letters are missing, and the end after it."""
    logits = np.zeros((len(LETTERS), len(LETTERS)), np.float32)
    logits[:, LETTERS.index("b")], logits[LETTERS.index("b"), LETTERS.index("$")] = 5, 9
    possible = {word.ljust(length, "_") for word in all_words(length, SPELLED)}
    for seed in range(3):
        assert set(searched(logits, length, 50, sampler(seed), SPELLING)[0]) <= possible
    assert set(searched(logits, length, words=SPELLING)[0]) <= possible
    found, scores = beams(logits, 9, length, words=SPELLING)
    assert {word for word, score in zip(found, scores, strict=True) if np.isfinite(score)} <= possible


def test_state_follows_its_hypothesis() -> None:
    """The state is the number that the ids of a hypothesis spell. The logits depend on the last two ids.

    The state of each row starts with its own number in place of an id before the begin symbol.
    """
    starts = [0, 5]
    logits = random_table(3)
    logits[:, 2] = LOW  # no end, so that all hypotheses have the maximum length

    def step(state: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        state = state * 10 + tf.cast(ids[:, None], tf.int64)
        before_last = tf.cast(state // 10 % 10, tf.float32)
        return tf.gather(logits, ids) + 0.1 * before_last * tf.range(len(LETTERS), dtype=tf.float32), state

    def score(before_last: int, word: str) -> float:
        total, last = 0.0, 1
        for letter in word:
            row = logits[last].astype(np.float64) + 0.1 * before_last * np.arange(len(LETTERS))
            total += row[LETTERS.index(letter)] - np.log(sum(np.exp(row[LETTERS.index(x)]) for x in "abc"))
            before_last, last = last, LETTERS.index(letter)
        return total

    state = tf.constant(starts, tf.int64)[:, None]  # [rows, 1]
    ids, scores = beam_search(step, state, tf.constant(len(starts)), SPECIAL_IDS, ANY_WORD, 4, 81, 0.0)
    for start, words, row_scores in zip(starts, ids.numpy(), scores.numpy(), strict=True):
        expected = [score(start, spelled(word)) for word in words]
        np.testing.assert_allclose(row_scores, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("interval", [2, 3, 100])
@pytest.mark.parametrize("beam_size", [0, 3])
def test_rarer_checks_whether_all_are_finished_change_no_result(beam_size: int, interval: int) -> None:
    """The rows end at different positions, all of them before the last one."""
    rows, length = 5, 12
    starts = tf.constant(np.random.default_rng(2).normal(size=(rows, len(LETTERS))), tf.float32)
    logits = random_table(2)
    logits[:, SPECIAL_IDS.end] += 3

    def step(state: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(logits, ids) + state, state

    used: Any = Search(step, SPECIAL_IDS, SPELLING, length, greedy)
    if beam_size:
        used = BeamSearch(step, SPECIAL_IDS, SPELLING, length, beam_size, 1.0)
    start = used.start(starts, tf.constant(rows))
    expected = used.run(start, length)
    assert int(expected.position) < length
    assert len(set(np.count_nonzero(expected.ids.numpy().reshape(-1, length), axis=-1))) > 1
    rarely, whole = used.run(start, length, interval), used.run(start, length, None)
    for ids, scores in (
        (rarely.ids, rarely.scores),
        (whole.ids, whole.scores),
        run_unfinished(lambda _: used.run, start, length, check_interval=interval),
    ):
        np.testing.assert_array_equal(ids, expected.ids)
        np.testing.assert_array_equal(scores, expected.scores)
