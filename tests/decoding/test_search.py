"""Searches over a vocabulary of letters, where a table says what may follow what."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from chatbot.decoding.beam import beam_search
from chatbot.decoding.greedy import greedy_search
from chatbot.decoding.step import Step, Tokens

LETTERS = "_^$?abc"  # padding, begin, end, unknown, then the alphabet
TOKENS = Tokens(begin=1, end=2, pad=0, never=(0, 1, 3))
LOW = -1e9


def table(probabilities: dict[str, dict[str, float]]) -> np.ndarray:
    """[letters, letters] log-probabilities of the next letter, given the last."""
    logits = np.full((len(LETTERS), len(LETTERS)), LOW, np.float32)
    for last, following in probabilities.items():
        for letter, probability in following.items():
            logits[LETTERS.index(last), LETTERS.index(letter)] = np.log(probability)
    return logits


def step_of(logits: np.ndarray) -> Step:
    """A step whose state counts the letters so far; the table alone decides."""

    def step(state: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(logits, ids), state + 1

    return step


def spelled(ids: np.ndarray) -> str:
    """The letters of one hypothesis."""
    return "".join(LETTERS[i] for i in ids)


def beams(
    logits: np.ndarray, size: int, length: int, penalty: float = 0.0, rows: int = 1
) -> tuple[list[str], np.ndarray]:
    """Hypotheses and scores of the first row."""
    ids, scores = beam_search(step_of(logits), tf.zeros([rows, 1]), tf.constant(rows), TOKENS, length, size, penalty)
    assert ids.shape == (rows, size, length)
    return [spelled(row) for row in ids[0].numpy()], scores[0].numpy()


GREEDY_TRAP = table(
    {
        "^": {"a": 0.6, "b": 0.4},
        "a": {"b": 0.5, "c": 0.5},
        "b": {"$": 1.0},
        "c": {"$": 1.0},
    }
)


def test_greedy_takes_the_best_letter_and_pads_after_the_end() -> None:
    ids, scores = greedy_search(step_of(GREEDY_TRAP), tf.zeros([2, 1]), tf.constant(2), TOKENS, 5)
    assert [spelled(row) for row in ids[:, 0].numpy()] == ["ab$__"] * 2
    np.testing.assert_allclose(scores[:, 0], np.log(0.3), rtol=1e-5)


def test_greedy_stops_at_the_fixed_length() -> None:
    endless = table({"^": {"a": 1.0}, "a": {"a": 1.0}})
    ids, _ = greedy_search(step_of(endless), tf.zeros([1, 1]), tf.constant(1), TOKENS, 4)
    assert spelled(ids[0, 0].numpy()) == "aaaa"


def test_beam_finds_what_greedy_misses_and_freezes_the_finished() -> None:
    found, scores = beams(GREEDY_TRAP, size=3, length=6)
    assert found[0] == "b$____"
    assert set(found[1:]) == {"ab$___", "ac$___"}
    np.testing.assert_allclose(np.exp(scores), [0.4, 0.3, 0.3], rtol=1e-5)


def test_the_length_penalty_prefers_the_longer() -> None:
    assert beams(GREEDY_TRAP, 3, 6, penalty=5.0)[0][0] == "ab$___"


def test_never_unknown_never_empty() -> None:
    tempting = table({"^": {"?": 0.5, "$": 0.3, "_": 0.1, "a": 0.1}, "a": {"?": 0.8, "^": 0.1, "$": 0.1}})
    assert beams(tempting, 2, 3)[0][0] == "a$_"
    ids, scores = greedy_search(step_of(tempting), tf.zeros([1, 1]), tf.constant(1), TOKENS, 3)
    assert spelled(ids[0, 0].numpy()) == "a$_"
    np.testing.assert_allclose(scores, 0.0, atol=1e-5)  # what is left is certain


def test_a_beam_wider_than_the_possible_has_scores_of_minus_infinity() -> None:
    found, scores = beams(table({"^": {"a": 1.0}, "a": {"$": 1.0}}), size=5, length=2)
    assert found[0] == "a$"
    assert np.isfinite(scores[0])


@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_equals_trying_everything(seed: int, penalty: float) -> None:
    length, alphabet = 4, "abc"
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (len(LETTERS), len(LETTERS))).astype(np.float32)

    def score(word: str) -> float:
        total, last = 0.0, "^"
        for position, letter in enumerate(word):
            allowed = alphabet + ("$" if position else "")
            row = logits[LETTERS.index(last)].astype(np.float64)
            total += row[LETTERS.index(letter)]
            total -= np.log(sum(np.exp(row[LETTERS.index(x)]) for x in allowed))
            last = letter
        return total / ((5 + len(word)) / 6) ** penalty

    words = ["".join(w) + "$" for n in range(1, length) for w in itertools.product(alphabet, repeat=n)]
    words += ["".join(w) for w in itertools.product(alphabet, repeat=length)]
    best = sorted(words, key=score, reverse=True)[:5]
    found, scores = beams(logits, size=120, length=length, penalty=penalty)
    assert [f.rstrip("_") for f in found[:5]] == best
    np.testing.assert_allclose(scores[:5], [score(w) for w in best], rtol=1e-4)


def test_the_state_follows_its_hypothesis() -> None:
    """The state spells the letters so far; at the end it must agree with the letters found."""
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 2, (len(LETTERS), len(LETTERS))).astype(np.float32)
    logits[:, 2] = LOW  # no end: every hypothesis is as long as the limit

    def step(state: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        own = tf.gather(logits, ids)
        # A wrong parent would make the last letter disagree with the state's.
        state = state * 10 + tf.cast(ids[:, None], tf.int64)
        agree = tf.cast(state[:, :1] % 10 == tf.cast(ids[:, None], tf.int64), tf.float32)
        seen = tf.cast(state[:, :1] // 10 % 10, tf.float32)
        return own * agree + 0.1 * seen * tf.range(len(LETTERS), dtype=tf.float32), state

    def score(word: str) -> float:
        total, before, last = 0.0, 0, 1
        for letter in word:
            row = logits[last].astype(np.float64) + 0.1 * before * np.arange(len(LETTERS))
            allowed = [row[LETTERS.index(x)] for x in "abc"]
            if last != 1:
                allowed.append(row[2])
            total += row[LETTERS.index(letter)] - np.log(np.exp(allowed).sum())
            before, last = last, LETTERS.index(letter)
        return total

    ids, scores = beam_search(step, tf.zeros([1, 1], tf.int64), tf.constant(1), TOKENS, 4, 81, 0.0)
    for row, found in zip(ids[0].numpy(), scores[0].numpy(), strict=True):
        np.testing.assert_allclose(found, score(spelled(row)), rtol=1e-3, atol=1e-3)
