"""Greedy search, sampling and beam search against enumerations of all words."""

import numpy as np
import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import EOS, PAD
from chatbot.decoding.automaton import Automaton
from tests.decoding.searches import (
    ANY_WORD,
    LETTERS,
    LOW,
    SPELLED,
    SPELLING,
    Tables,
    all_words,
    found,
    found_by_graph,
    random_table,
    table,
    word_score,
)

GREEDY = DecodingSettings(beam_size=1)
AUTOMATA = pytest.mark.parametrize(
    ("words", "pattern"), [(ANY_WORD, "[abc]+"), (SPELLING, SPELLED)], ids=["any word", "spelling"]
)
GREEDY_TRAP = table({"^": {"a": 0.6, "b": 0.4}, "a": {"b": 0.5, "c": 0.5}, "b": {"$": 1.0}, "c": {"$": 1.0}})


def beams(size: int, penalty: float = 0.0) -> DecodingSettings:
    """The settings of beam search."""
    return DecodingSettings(beam_size=size, length_penalty=penalty)


def numbers(seed: int, rows: int, length: int) -> np.ndarray:
    """Random numbers for sampling."""
    return np.random.default_rng(seed).random((rows, length), np.float32)


def test_greedy_picks_most_probable_letter_and_pads_after_end() -> None:
    words, scores = found(GREEDY_TRAP, GREEDY, 5, rows=2)
    assert words == [["ab$__"]] * 2
    np.testing.assert_allclose(scores, np.log(0.3), rtol=1e-5)


def test_greedy_stops_at_maximum_length() -> None:
    assert found(table({"^": {"a": 1.0}, "a": {"a": 1.0}}), GREEDY, 4)[0] == [["aaaa"]]


@pytest.mark.parametrize("decoding", [DecodingSettings(temperature=1.0), beams(3, 1.0)], ids=["sampling", "beam"])
def test_rare_checks_whether_all_have_ended_change_nothing(decoding: DecodingSettings) -> None:
    """As on a GPU."""
    uniform = numbers(7, 8, 9) if decoding.samples else None
    arguments = Tables(random_table(7)), decoding, SPELLING, 9, 8, uniform
    ids, scores = found_by_graph(*arguments)
    assert (ids == PAD).any()
    for interval in (2, 4):
        same_ids, same_scores = found_by_graph(*arguments, interval)
        np.testing.assert_array_equal(same_ids, ids)
        np.testing.assert_allclose(same_scores, scores, rtol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@AUTOMATA
def test_sampled_words_have_their_probabilities(words: Automaton, pattern: str, temperature: float) -> None:
    """The frequency of each word of 20,000 is its probability; its score is the log-probability at temperature 1."""
    logits, rows, length = random_table(1), 20_000, 4
    decoding = DecodingSettings(temperature=temperature)
    of_rows, scores = found(logits, decoding, length, rows, words, numbers(7, rows, length))
    sampled, possible = [word for (word,) in of_rows], all_words(length, pattern)
    expected = [word_score(logits, word.rstrip("_"), possible) for word in sampled[:50]]
    np.testing.assert_allclose(scores[:50, 0], expected, rtol=1e-4, atol=1e-6)
    for word in possible:
        # A temperature below 1 scales the logits of each letter up.
        probability = np.exp(word_score(logits / temperature, word, possible))
        frequency = sampled.count(word.ljust(length, "_")) / rows
        assert abs(frequency - probability) < 5 * np.sqrt(probability / rows) + 1 / rows  # a rare word may come once


def test_beam_search_is_better_than_greedy_and_keeps_finished_hypotheses() -> None:
    ((best, *others),), scores = found(GREEDY_TRAP, beams(3), 6)
    assert best == "b$____"
    assert set(others) == {"ab$___", "ac$___"}
    np.testing.assert_allclose(np.exp(scores), [[0.4, 0.3, 0.3]], rtol=1e-5)


def test_large_length_penalty_prefers_longer_replies() -> None:
    assert found(GREEDY_TRAP, beams(3, 5.0), 6)[0][0][0] == "ab$___"


def test_forbidden_letters_and_empty_replies_are_not_generated() -> None:
    logits = table({"^": {"?": 0.5, "$": 0.3, "_": 0.1, "a": 0.1}, "a": {"?": 0.8, "^": 0.1, "$": 0.1}})
    assert found(logits, beams(2), 3)[0][0][0] == "a$_"
    words, scores = found(logits, GREEDY, 3)
    assert words == [["a$_"]]
    np.testing.assert_allclose(scores, 0.0, atol=1e-5)  # the only possible word


def test_missing_hypotheses_score_minus_infinity() -> None:
    """Only three letters are possible at the first position."""
    ((*words,),), scores = found(random_table(0), beams(5), 1)
    assert sorted(words[:3]) == ["a", "b", "c"]
    assert np.isfinite(scores[0]).tolist() == [True] * 3 + [False] * 2


@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(3))
@AUTOMATA
def test_wide_beam_equals_enumeration(words: Automaton, pattern: str, seed: int, penalty: float) -> None:
    """Of all rows, which are equal."""
    logits, length = random_table(seed), 4
    possible = all_words(length, pattern)

    def score(word: str) -> float:
        return word_score(logits, word, possible) / ((5 + len(word)) / 6) ** penalty

    best = sorted(possible, key=score, reverse=True)
    (hypotheses, other), (scores, _) = found(logits, beams(100, penalty), length, 2, words)
    assert hypotheses[:5] == other[:5]
    assert [word.rstrip("_") for word in hypotheses[:5]] == best[:5]
    np.testing.assert_allclose(scores[:5], [score(word) for word in best[:5]], rtol=1e-4)
    finite = {word.rstrip("_") for word, score in zip(hypotheses, scores, strict=True) if np.isfinite(score)}
    assert finite <= set(possible)
    assert len(finite) == min(100, len(possible))
    assert not np.isnan(scores).any()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_word_never_ends_within_a_spelling(length: int) -> None:
    """The model prefers b, after which two or three letters are missing, and the end after it."""
    logits = np.zeros((len(LETTERS), len(LETTERS)), np.float32)
    logits[:, LETTERS.index("b")], logits[LETTERS.index("b"), EOS] = 5, 9
    possible = {word.ljust(length, "_") for word in all_words(length, SPELLED)}
    for seed in range(3):
        rows, _ = found(logits, DecodingSettings(temperature=1.0), length, 50, SPELLING, numbers(seed, 50, length))
        assert {word for (word,) in rows} <= possible
    assert {*found(logits, GREEDY, length, words=SPELLING)[0][0]} <= possible
    (words,), (scores,) = found(logits, beams(9), length, words=SPELLING)
    assert {word for word, score in zip(words, scores, strict=True) if np.isfinite(score)} <= possible


def test_state_follows_its_hypothesis() -> None:
    """The state of each row starts with its own number in place of an id before the begin symbol."""
    starts = [0, 5]
    logits = random_table(3)
    logits[:, EOS] = LOW  # no end, so that all hypotheses have the maximum length

    def score(before_last: int, word: str) -> float:
        total, last = 0.0, 1
        for letter in word:
            row = logits[last].astype(np.float64) + 0.1 * before_last * np.arange(len(LETTERS))
            total += row[LETTERS.index(letter)] - np.log(sum(np.exp(row[LETTERS.index(x)]) for x in "abc"))
            before_last, last = last, LETTERS.index(letter)
        return total

    rows, scores = found(Tables(logits, before=np.array(starts)), beams(81), 4, rows=2)
    for start, words, row_scores in zip(starts, rows, scores, strict=True):
        np.testing.assert_allclose(row_scores, [score(start, word) for word in words], rtol=1e-3, atol=1e-3)
