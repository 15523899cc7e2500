"""Replies in pieces: joined, they are the reply; no piece is taken back, and no more is held back than needed."""

import hypothesis
import hypothesis.strategies as st

from chatbot.corpus.vocabulary import BYTES, EOS, SPECIALS, Vocabulary
from chatbot.decoding.reply_text import ReplyText
from tests.oracle import before_stop

VOCABULARY = Vocabulary(["a", "b", "ab", "▁a", "▁", *BYTES])
TOKENS = range(len(SPECIALS), VOCABULARY.first_byte)
PARTS = st.one_of(
    st.sampled_from(TOKENS).map(lambda i: [i]),  # most often: they may begin a stop text
    st.sampled_from(["a", "ab", "好", "😀", "\u3000"]).map(lambda token: VOCABULARY.ids([token])),
    st.sampled_from(sorted({*range(len(VOCABULARY))} - {EOS})).map(lambda i: [i]),
)


def ids_of(*tokens: str) -> list[list[int]]:
    return [VOCABULARY.ids([token]) for token in tokens]


@hypothesis.given(st.lists(PARTS, max_size=10), st.lists(st.text("ab 好", min_size=1, max_size=4), max_size=3))
@hypothesis.example([[204], [0], [138]], [])  # an id without text between the bytes of a character
@hypothesis.example(ids_of("a", "b", "a", "b"), ["ba", "abab"])
@hypothesis.example(ids_of("a", "ab", "ab", "a"), ["aba", "baba"])
@hypothesis.example(ids_of("a", "▁", "\u3000"), ["a "])
@hypothesis.settings(max_examples=200)
def test_joined_pieces_are_the_text_before_the_first_complete_stop(parts: list[list[int]], stops: list[str]) -> None:
    ids = [i for part in parts for i in part]
    reply_text, given = ReplyText(VOCABULARY, stops, []), ""
    for number, i in enumerate(ids, 1):
        reply_text.ids.append(i)
        reply_text.read(is_whole=False)
        given += "" if reply_text.is_stopped else reply_text.piece()
        text = VOCABULARY.text(ids[:number])
        if i in TOKENS and not any(stop in text for stop in stops):
            held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
            assert given == text[: len(text) - held].rstrip()
    reply_text.read(is_whole=True)
    text = VOCABULARY.text(ids)
    reply = before_stop(text, stops)
    assert given + reply_text.rest() == reply
    assert reply_text.is_stopped == any(stop in text for stop in stops)
    if reply_text.is_stopped:
        number = max(n for n in range(len(ids)) if reply.startswith(VOCABULARY.text(ids[:n])))
        assert reply_text.ids_before_stop() == number
