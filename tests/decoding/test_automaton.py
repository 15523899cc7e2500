"""Banned words in all spellings, against a search in the text of every possible reply."""

import itertools

import numpy as np
import pytest

from chatbot.corpus.vocabulary import BYTES, EOS, Vocabulary
from chatbot.decoding.automaton import Automaton, spelling_automaton, without_words
from chatbot.errors import UserError

VOCABULARY = Vocabulary(["你好", "你", "好", "吗", "你好吗", "ab", "▁b", *BYTES])
LENGTH = 5


def accepted(automaton: Automaton, ids: tuple[int, ...]) -> bool:
    """Whether these ids may follow one another and then end."""
    state = 0
    for i in (*ids, EOS):
        if not automaton.allowed[state, i]:
            return False
        state = automaton.next_states[state, i]
    return True


@pytest.mark.parametrize(
    "words",
    [["你好"], ["好"], ["好你"], ["ab", "b吗"], ["aba", "ba"], ["a b"], ["你好吗吗", "好吗"], ["他"], ["你", "你好"]],
    ids=" ".join,
)
def test_replies_contain_no_banned_word_in_any_spelling(words: list[str]) -> None:
    """Of all sequences of ids that spell text with these characters, those without the words are left."""
    spelling = spelling_automaton(VOCABULARY)
    automaton = without_words(spelling, VOCABULARY, words, LENGTH)
    a, b = (VOCABULARY.first_byte + ord(letter) for letter in "ab")
    units: list[tuple[int, ...]] = [*((i,) for i in range(5, 12)), (a,), (b,)]
    units += [tuple(VOCABULARY.first_byte + byte for byte in letter.encode()) for letter in "好他"]
    for count in (1, 2, 3):
        for parts in itertools.product(units, repeat=count):
            ids = tuple(itertools.chain.from_iterable(parts))
            text = "".join(VOCABULARY.tokens_of(ids)).replace("▁", " ")
            if len(ids) < LENGTH:
                assert accepted(automaton, ids) == (not any(word in text for word in words)), text
    assert accepted(automaton, tuple(VOCABULARY.first_byte + byte for byte in "😀".encode()))


def test_no_state_is_a_dead_end() -> None:
    """After F0 9F 98, 64 bytes may follow. If all of these characters are banned, F0 9F 98 is, too."""
    words = [chr(0x1F600 + i) for i in range(64)]
    automaton = without_words(spelling_automaton(VOCABULARY), VOCABULARY, words, LENGTH)
    assert automaton.allowed.any(axis=1).all()
    state = 0
    for byte in (0xF0, 0x9F):
        state = automaton.next_states[state, VOCABULARY.first_byte + byte]
    assert not automaton.allowed[state, VOCABULARY.first_byte + 0x98]
    assert automaton.allowed[state, VOCABULARY.first_byte + 0x97]


def test_words_that_leave_nothing_or_are_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary(["你好", "你", *BYTES])
    spelling = spelling_automaton(vocabulary)
    allowed = without_words(spelling, vocabulary, ["好"], 3).allowed
    assert np.flatnonzero(allowed[0, : vocabulary.first_byte]).tolist() == [EOS, 6]
    with pytest.raises(UserError, match=r"^--ban: these words leave nothing to reply; give fewer$"):
        without_words(spelling, vocabulary, ["你", *map(chr, range(128))], 1)
    monkeypatch.setattr("chatbot.decoding.automaton.LARGEST", 10)
    with pytest.raises(UserError, match=r"^--ban: 1 words are too many for memory; give fewer$"):
        without_words(spelling, vocabulary, ["好好"], 3)
