"""The automaton of spellings, against Python's UTF-8 decoder and the cleaning rules."""

import codecs
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.tokenizer import SPACE
from chatbot.corpus.vocabulary import ASK, BOS, BYTES, EOS, PAD, SPECIALS, UNK, Vocabulary
from chatbot.decoding.automaton import spelling_automaton

VOCABULARY = Vocabulary(["你", SPACE, *BYTES])
FIRST = VOCABULARY.first_byte
ALLOWED, NEXT_STATES = spelling_automaton(VOCABULARY)
NEVER = None
CLEAN = cleaner(["control"])


def state_after(text: Sequence[int]) -> int | None:
    """The state after these bytes, NEVER if one of them is not allowed."""
    state = 0
    for byte in text:
        if not ALLOWED[state, FIRST + byte]:
            return NEVER
        state = int(NEXT_STATES[state, FIRST + byte])
    return state


def in_reply(character: str) -> bool:
    """The slow twin: whether cleaning leaves the character as it is, U+200D within an emoji."""
    return CLEAN(character) == character or character == "\u200d" or character > "\uffff"


def test_every_character_that_cleaning_keeps_is_spelled_and_no_other() -> None:
    for point in itertools.chain(range(0x10000), range(0x10000, 0x110000, 0x3F1), (0x10FFFF,)):
        character = chr(point)
        complete = state_after(character.encode(errors="surrogatepass")) == 0
        assert complete == in_reply(character), hex(point)


@pytest.mark.parametrize("length", [1, 2])
def test_short_sequences_are_those_of_the_decoder(length: int) -> None:
    for sequence in itertools.product(range(256), repeat=length):
        check(bytes(sequence))


@given(
    st.lists(
        st.sampled_from([*b"a\x7f\x80\x8f\x90\x9f\xa0\xbf\xc1\xc2\xe0\xe2\xe4\xed\xef\xf0\xf1\xf4\xf5"]), max_size=9
    )
)
def test_long_sequences_are_those_of_the_decoder(sequence: list[int]) -> None:
    check(bytes(sequence))


def check(sequence: bytes) -> None:
    """A sequence is complete if it can be decoded, and allowed only if it can be decoded or continued."""
    state, result = state_after(sequence), decoded(sequence)
    if result is None or not all(map(in_reply, result[0])):
        assert state is NEVER, sequence
    elif result[1]:
        assert state != 0, sequence  # NEVER, if cleaning removes all characters that begin so
    else:
        assert state == 0, sequence


def decoded(sequence: bytes) -> tuple[str, bytes] | None:
    """The complete characters, and the bytes that a character begins with after them; None if they are not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(sequence), decoder.getstate()[0]
    except UnicodeDecodeError:
        return None


def test_tokens_follow_complete_characters_only() -> None:
    for token in (EOS, len(SPECIALS), len(SPECIALS) + 1):
        assert ALLOWED[:, token].tolist() == [True] + [False] * (len(ALLOWED) - 1)
        assert not NEXT_STATES[:, token].any()
    assert not ALLOWED[:, [PAD, BOS, UNK, ASK]].any()
    assert ALLOWED.any(axis=1).all()


def test_tokens_with_control_characters_are_in_no_reply() -> None:
    """A vocabulary of others may have sequences that a terminal obeys."""
    tokens = ["你", "\x1b[2J", "好\x07", "\x9b1m", "a"]
    allowed, _ = spelling_automaton(Vocabulary([*tokens, *BYTES]))
    first = len(SPECIALS)
    assert allowed[0, first : first + len(tokens)].tolist() == [True, False, False, False, True]
    assert not allowed[1:, first : first + len(tokens)].any()
