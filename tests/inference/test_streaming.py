"""Replies in pieces: joined, they are the reply; no piece is taken back."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.corpus.encoding.vocabulary import BYTES, EOS, Vocabulary
from chatbot.inference.pieces import pieces
from chatbot.inference.replier import Replier
from chatbot.inference.stop_texts import before_stop
from chatbot.model.new_model import built_model

VOCABULARY = Vocabulary(["a", "b", "ab", "▁a", "▁", *BYTES])
SETTINGS = ModelSettings(rnn_size=8, embedding_size=6, max_length=20)


@hypothesis.given(
    st.lists(st.sampled_from([["a"], ["b"], ["ab"], ["▁a"], ["▁"], ["好"], ["😀"]]), min_size=1, max_size=8),
    st.lists(st.text("ab 好", min_size=1, max_size=3), max_size=3),
)
@hypothesis.example([["a"], ["b"], ["a"], ["b"]], ["ba", "abab"])
@hypothesis.settings(max_examples=150)
def test_joined_pieces_are_the_text_before_the_first_complete_stop(tokens: list[list[str]], stops: list[str]) -> None:
    ids = [i for token in tokens for i in VOCABULARY.ids(token)]
    prefixes = ([*ids, EOS][:n] for n in range(1, len(ids) + 2))
    found = list(pieces(prefixes, VOCABULARY, stops))
    text = VOCABULARY.text(ids)
    assert "".join(found) == before_stop(text, stops)
    assert "" not in found
    ends = {n for stop in stops for n in range(len(text) + 1) if text[:n].endswith(stop)}
    expected = text[: min(ends)] if ends else text
    assert expected.startswith("".join(found))
    assert not any(stop in "".join(found) for stop in stops)


def test_characters_spaces_and_possible_stops_are_held_back() -> None:
    ids = VOCABULARY.ids(["好", "▁a", "b", "a"])  # the bytes of one character, then three tokens
    prefixes = [ids[:n] for n in range(1, len(ids) + 1)]
    shown = [list(pieces(iter(prefixes[:n]), VOCABULARY, ["bb"])) for n in range(1, len(prefixes) + 1)]
    assert shown == [[], [], ["好"], ["好", " a"], ["好", " a", "b"], ["好", " a", "ba"]]


@pytest.mark.parametrize(
    "decoding",
    [
        {"beam_size": 1, "repetition_penalty": 1.3},
        {"temperature": 1.0, "top_p": 0.95, "anti_lm": 0.3, "stop": ("b", "a ")},
        {"beam_size": 3},
        {"candidates": 4, "rerank": 1.0},
    ],
    ids=["greedy", "sampling", "beam", "candidates"],
)
def test_stream_gives_the_reply(decoding: dict[str, Any]) -> None:
    model = built_model(SETTINGS, len(VOCABULARY), seed=1)
    model.embedding.embeddings.assign(np.random.default_rng(1).normal(size=model.embedding.embeddings.shape))
    model.bias.assign(np.where(np.arange(len(VOCABULARY)) < VOCABULARY.first_byte, 3.0, 0.0))
    replier = Replier(model, VOCABULARY, SETTINGS, DecodingSettings(**decoding))
    questions = [[5], [6, 7, 8], [8] * 30, [7, 9], [6, 6]]
    counts = []
    for question, reply in zip(questions, replier.replies(questions), strict=True):
        found = list(replier.stream(question))
        assert "".join(found) == reply
        counts.append(len(found))
    if replier.decoding.hypotheses > 1:
        assert set(counts) == {1}
    else:
        assert max(counts) > 3
        assert replier._stream is not None
        assert replier._stream.traces == 1
