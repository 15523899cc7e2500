"""Replies to any text: one line each, also to texts without a visible character."""

import dataclasses

import numpy as np
import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import BYTES, MARKS, Vocabulary
from chatbot.flags import compose, replace
from chatbot.inference.responder import Responder, word_attention
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY, END, MAX_CHARACTERS
from chatbot.model.new_model import built_model
from chatbot.model.saved import Trained
from tests.inference.texts import EMPTY, UNUSUAL

SETTINGS = compose(Settings, rnn_size=8, embedding_size=6, max_length=6)


@pytest.fixture(scope="module")
def trained() -> Trained:
    """An untrained model whose reply depends on the question."""
    vocabulary = Vocabulary(["你好", "你", "好", "吗", *BYTES])
    model = built_model(SETTINGS.model, len(vocabulary), seed=1)
    model.embedding.embeddings.assign(np.random.default_rng(1).normal(size=model.embedding.embeddings.shape))
    return Trained(SETTINGS, vocabulary, model, step=0)


@pytest.mark.parametrize("beam_size", [1, 5])
def test_any_text_gets_a_one_line_reply(trained: Trained, beam_size: int) -> None:
    responder = Responder(trained, DecodingSettings(beam_size=beam_size))
    replies = [responder.reply(text) for text in UNUSUAL]
    assert all(reply.strip() and len(reply.splitlines()) == 1 for reply in replies)
    assert EMPTY_QUESTION_REPLY not in replies
    assert responder.replier.search.graph.traces == 1  # type: ignore[attr-defined]


def test_blank_text_gets_a_request_for_a_question(trained: Trained) -> None:
    responder = Responder(trained, DecodingSettings())
    texts = [*EMPTY, "\ud800"]  # the last is half of a surrogate pair
    assert [responder.reply(text) for text in texts] == [EMPTY_QUESTION_REPLY] * len(texts)


def test_replies_keep_the_order_of_texts(trained: Trained) -> None:
    responder = Responder(trained, DecodingSettings())
    texts = ["", "你好", " ", "吗吗吗", "你", ""]
    replies = responder.replies(texts)
    assert replies == [responder.reply(text) for text in texts]
    assert len(set(replies)) > 2
    assert responder.replies([]) == []


def test_long_texts_are_truncated(trained: Trained) -> None:
    responder = Responder(trained, DecodingSettings())
    assert len(responder.ids("吗" * (2 * MAX_CHARACTERS))) == MAX_CHARACTERS
    assert responder.ids("你好他") == [5, *(trained.vocabulary.first_byte + byte for byte in "他".encode())]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("吗吗吗吗吗吗吗\n你好", "你好"),
        ("吗\n你好", "吗\n你好"),
        ("吗吗吗吗\n好\n你好", "好\n你好"),
        ("你\n", "你"),
        ("吗吗吗吗吗吗吗\n", "吗吗吗吗吗吗吗"),
    ],
)
def test_the_last_lines_of_a_long_text_are_read(trained: Trained, text: str, read: str) -> None:
    responder = Responder(trained, DecodingSettings())
    assert responder.source(text, ()) == responder.ids(read)[:6] != []


@pytest.mark.parametrize(
    ("history", "source"),
    [
        ([], "<你好"),
        (["好"], ">好<你好"),
        (["吗", "好"], "<吗>好<你好"),
        (["吗", "好", "你"], "<好>你<你好"),
        (["吗吗", "好"], ">好<你好"),  # the first turn does not fit in --max-length
        (["好", "", "你"], ">你<你好"),
        (["好", " "], "<你好"),
        (["吗吗吗吗"], "<你好"),
    ],
)
def test_last_turns_are_read_with_the_question(trained: Trained, history: list[str], source: str) -> None:
    """The model was trained with two turns, and --max-length 6."""
    vocabulary = Vocabulary(["你好", "你", "好", "吗", *MARKS, *BYTES])
    settings = replace(SETTINGS, history=2)
    responder = Responder(
        dataclasses.replace(trained, settings=settings, vocabulary=vocabulary), DecodingSettings(beam_size=1)
    )
    tokens = vocabulary.tokens_of(responder.source("你好", history))
    assert "".join({MARKS[0]: "<", MARKS[1]: ">"}.get(token, token) for token in tokens) == source
    assert responder.source(" ", ["好"]) == []
    without = Responder(trained, DecodingSettings(beam_size=1))
    assert without.source("你好", history) == without.ids("你好")


def test_attention_is_that_of_the_ids(trained: Trained) -> None:
    responder = Responder(trained, DecodingSettings())
    # 你好, 吗, 好, three bytes, and 好, 吗, 好, three bytes: --max-length 6
    shown = responder.attention("你好吗好他他", "好吗好他他")
    assert shown is not None
    ids = responder.ids("你好吗好他"), responder.ids("好吗好他")
    (expected,) = word_attention(trained.model, trained.vocabulary, [ids[0]], [ids[1]])
    assert (shown.question, shown.reply) == (["你好", "吗", "好", "他"], ["好", "吗", "好", "他", END])
    np.testing.assert_array_equal(shown.weights, expected.weights)
    model = built_model(replace(SETTINGS, attention="none").model, len(trained.vocabulary), seed=1)
    without = dataclasses.replace(trained, model=model)
    assert Responder(without, DecodingSettings()).attention("你好", "好") is None
