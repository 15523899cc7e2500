"""Replies in pieces: joined, they are the reply; no piece is taken back."""

from collections.abc import Iterable, Sequence

import hypothesis
import hypothesis.strategies as st

from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import BYTES, EOS, SPECIALS, Vocabulary
from chatbot.flags import compose
from chatbot.inference.reply_text import ReplyText, before_stop

VOCABULARY = Vocabulary(["a", "b", "ab", "▁a", "▁", *BYTES])
SETTINGS = compose(Settings, rnn_size=8, embedding_size=6, max_length=20)


def pieces(ids: Iterable[int], vocabulary: Vocabulary, stops: Sequence[str]) -> list[str]:
    """The pieces of a reply whose ids come one by one."""
    text, found = ReplyText(vocabulary, stops, []), []
    for i in ids:
        if i != EOS:
            text.ids.append(i)
        text.read(is_whole=i == EOS)
        if text.is_stopped:
            break
        found.append(text.piece())
    return [piece for piece in (*found, text.rest()) if piece]


@hypothesis.given(
    st.lists(
        st.sampled_from([["a"], ["b"], ["ab"], ["▁a"], ["▁"], ["好"], ["😀"], ["\u3000"]]), min_size=1, max_size=8
    ),
    st.lists(st.text("ab 好", min_size=1, max_size=4), max_size=3),
)
@hypothesis.example([["a"], ["b"], ["a"], ["b"]], ["ba", "abab"])
@hypothesis.example([["a"], ["ab"], ["ab"], ["a"]], ["aba", "baba"])
@hypothesis.example([["a"], ["▁"], ["\u3000"]], ["a "])
@hypothesis.settings(max_examples=150)
def test_joined_pieces_are_the_text_before_the_first_complete_stop(tokens: list[list[str]], stops: list[str]) -> None:
    ids = [i for token in tokens for i in VOCABULARY.ids(token)]
    found = pieces([*ids, EOS], VOCABULARY, stops)
    text = VOCABULARY.text(ids)
    reply = before_stop(text, stops)
    assert "".join(found) == reply
    ends = {n for stop in stops for n in range(len(text) + 1) if text[:n].endswith(stop)}
    expected = text[: min(ends)] if ends else text
    assert expected.startswith("".join(found))
    assert not any(stop in "".join(found) for stop in stops)
    reply_text = ReplyText(VOCABULARY, stops, ids)
    reply_text.read(is_whole=True)
    if reply_text.is_stopped:
        number = max(n for n in range(len(ids)) if reply.startswith(VOCABULARY.text(ids[:n])))
        assert reply_text.ids_before_stop() == number


@hypothesis.given(
    st.lists(
        st.sampled_from([*range(len(SPECIALS), VOCABULARY.first_byte)])  # most often: they may begin a stop text
        | st.sampled_from(sorted({*range(len(VOCABULARY))} - {EOS})),
        max_size=10,
    ),
    st.lists(st.text("ab 好", min_size=1, max_size=4), max_size=3),
)
@hypothesis.example([204, 0, 138], [])  # an id without text between the bytes of a character
@hypothesis.settings(max_examples=100)
def test_any_ids_have_the_text_of_the_vocabulary_and_no_more_is_held_back_than_needed(
    ids: list[int], stops: list[str]
) -> None:
    reply_text, given = ReplyText(VOCABULARY, stops, []), ""
    for number, i in enumerate(ids, 1):
        reply_text.ids.append(i)
        reply_text.read(is_whole=False)
        given += "" if reply_text.is_stopped else reply_text.piece()
        text = VOCABULARY.text(ids[:number])
        if i in range(len(SPECIALS), VOCABULARY.first_byte) and not any(stop in text for stop in stops):
            held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
            assert given == text[: len(text) - held].rstrip()
    reply_text.read(is_whole=True)
    assert given + reply_text.rest() == before_stop(VOCABULARY.text(ids), stops)


def test_characters_spaces_and_possible_stops_are_held_back() -> None:
    ids = VOCABULARY.ids(["好", "▁a", "b", "a"])  # the bytes of one character, then three tokens
    shown = [pieces(ids[:n], VOCABULARY, ["bb"]) for n in range(1, len(ids) + 1)]
    assert shown == [[], [], ["好"], ["好", " a"], ["好", " a", "b"], ["好", " a", "ba"]]
