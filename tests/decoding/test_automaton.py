"""The automata of spellings and of banned words, against the oracle, Python's UTF-8 decoder and the cleaning rules."""

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.vocabulary import BYTES, EOS, SPECIALS, Vocabulary
from chatbot.decoding.automaton import Automaton, BoundedAutomaton, spelling_automaton, without_words
from chatbot.errors import UserError
from tests.oracle import Ids, Oracle

VOCABULARY = Vocabulary(["你好", "你", "好", "吗", "你好吗", "ab", "▁b", *BYTES])
FIRST, LENGTH = VOCABULARY.first_byte, 5
SPELLING = spelling_automaton(VOCABULARY)
ORACLE = Oracle(lambda *_: np.zeros(1), VOCABULARY, max_length=1000)
CLEAN = cleaner(["control"])
AT_BORDERS = b"a\x7f\x80\x8f\x90\x9f\xa0\xbf\xc1\xc2\xe0\xe2\xe4\xed\xef\xf0\xf1\xf4\xf5"
BORDERS = [*range(1, 12), *(FIRST + byte for byte in AT_BORDERS)]


def state_after(automaton: Automaton, ids: Ids) -> int | None:
    """The state after these ids; None if one of them is not allowed."""
    state = 0
    for i in ids:
        if not automaton.allowed[state, i]:
            return None
        state = int(automaton.next_states[state, i])
    return state


def test_every_character_that_cleaning_keeps_is_spelled_and_no_other() -> None:
    """But for U+200D within an emoji, and of those beyond the plane of usual ones."""
    for point in itertools.chain(range(0x10000), range(0x10000, 0x110000, 0x3F1), (0x10FFFF,)):
        character = chr(point)
        is_kept = CLEAN(character) == character or character == "\u200d" or character > "\uffff"
        ids = [FIRST + byte for byte in character.encode(errors="surrogatepass")]
        assert (state_after(SPELLING, ids) == 0) == is_kept, hex(point)


@hypothesis.given(st.lists(st.sampled_from(BORDERS), min_size=1, max_size=9))
@hypothesis.example([FIRST + 0xC2])
@hypothesis.settings(max_examples=300)
def test_any_ids_are_those_that_a_reply_can_begin_with(ids: list[int]) -> None:
    """Only where the last character is whole can the reply end."""
    expected = [ORACLE.can_begin(part, DecodingSettings()) for part in (ids, [*ids, EOS])]
    if EOS not in ids:
        state = state_after(SPELLING, ids)
        assert [state is not None, state is not None and bool(SPELLING.allowed[state, EOS])] == expected


def test_no_token_controls_a_terminal() -> None:
    tokens = ["你", "\x1b[2J", "好\x07", "\x9b1m", "a"]  # as a vocabulary of others may have
    allowed, *_ = spelling_automaton(Vocabulary([*tokens, *BYTES]))
    assert allowed[0, len(SPECIALS) : len(SPECIALS) + len(tokens)].tolist() == [True, False, False, False, True]


@pytest.mark.parametrize(
    "words",
    [["你好"], ["好"], ["好你"], ["ab", "b吗"], ["aba", "ba"], ["a b"], ["你好吗吗", "好吗"], ["他"], ["你", "你好"]],
    ids=" ".join,
)
def test_replies_contain_no_banned_word_in_any_spelling(words: list[str]) -> None:
    """Of all sequences of ids that spell text with these characters, those without the words are left."""
    automaton, decoding = without_words(SPELLING, VOCABULARY, words, LENGTH), DecodingSettings(ban=tuple(words))
    units = [*((i,) for i in range(5, 12)), *(tuple(FIRST + byte for byte in x.encode()) for x in "ab好他")]
    for count in (1, 2, 3):
        for parts in itertools.product(units, repeat=count):
            ids = [*itertools.chain.from_iterable(parts)]
            if len(ids) < LENGTH:
                assert (state_after(automaton, [*ids, EOS]) is not None) == ORACLE.can_begin(ids, decoding)
    assert state_after(automaton, [*(FIRST + byte for byte in "😀".encode()), EOS]) is not None


def test_no_reply_consists_of_spaces() -> None:
    """Some may come before its first word, or between words."""
    vocabulary = Vocabulary(["▁", "你", *BYTES])
    space, word = (vocabulary.id_of[token] for token in ("▁", "你"))
    bounded = BoundedAutomaton(spelling_automaton(vocabulary), 4)
    logits, start = np.zeros([1, len(vocabulary)], np.float32), np.array([bounded.start])
    assert bounded.states_after(start, np.array([space])) == start
    for position, expected in ((1, [False, True, True]), (3, [False, True, False])):
        allowed = np.isfinite(bounded.allowed_logits(logits, start, position)[0])
        assert allowed[[EOS, word, space]].tolist() == expected
    after = bounded.states_after(start, np.array([word]))
    assert bounded.states_after(after, np.array([space])) == after
    assert np.isfinite(bounded.allowed_logits(logits, after, 2)[0, EOS])


def test_no_state_is_a_dead_end() -> None:
    """After F0 9F 98, 64 bytes may follow. If all of these characters are banned, F0 9F 98 is, too."""
    words = [chr(0x1F600 + i) for i in range(64)]
    automaton = without_words(SPELLING, VOCABULARY, words, LENGTH)
    assert automaton.allowed.any(axis=1).all()
    state = state_after(automaton, [FIRST + 0xF0, FIRST + 0x9F])
    assert not automaton.allowed[state, FIRST + 0x98]
    assert automaton.allowed[state, FIRST + 0x97]


def test_too_many_or_too_restrictive_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary(["你好", "你", *BYTES])
    spelling = spelling_automaton(vocabulary)
    allowed = without_words(spelling, vocabulary, ["好"], 3).allowed
    assert np.flatnonzero(allowed[0, : vocabulary.first_byte]).tolist() == [EOS, 6]
    with pytest.raises(UserError, match=r"^--ban: these words exclude every possible reply; ban fewer words$"):
        without_words(spelling, vocabulary, ["你", *map(chr, range(128))], 1)
    monkeypatch.setattr("chatbot.decoding.automaton.MAX_SIZE", 10)
    with pytest.raises(UserError, match=r"^--ban: too many words for the memory \(1\); ban fewer words$"):
        without_words(spelling, vocabulary, ["好好"], 3)
