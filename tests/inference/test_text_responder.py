"""Replies to any text, what is read of it, and the attention of a reply."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from chatbot.attempts.trained import Trained
from chatbot.config.decoding import DecodingSettings
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import BOS, BYTES, MARKS, Vocabulary
from chatbot.decoding.reply_text import END, MAX_CHARACTERS, attention_by_word, words
from chatbot.flags import compose, replace
from chatbot.inference.request import Question
from chatbot.inference.tensorflow_model import TensorFlowModel
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY, TextResponder
from chatbot.training.new_model import build_model
from tests.inference.messages import EMPTY, UNUSUAL, answer_of, replies_of, reply_of
from tests.tiny_models import VOCABULARY, Table, responder_of, tiny

SETTINGS = compose(Settings, rnn_size=8, embedding_size=6, max_length=6)


@pytest.fixture(scope="module")
def trained() -> Trained:
    """An untrained model whose reply depends on the question."""
    vocabulary = Vocabulary(["你好", "你", "好", "吗", *BYTES])
    model = build_model(SETTINGS.model, len(vocabulary), seed=1)
    model.embedding.embeddings.assign(np.random.default_rng(1).normal(size=model.embedding.embeddings.shape))
    return Trained(SETTINGS, vocabulary, model, step=0)


def test_any_text_gets_a_one_line_reply(trained: Trained) -> None:
    """A blank one a request for a question; several texts in their order."""
    responder = responder_of(trained, DecodingSettings(beam_size=5))
    blank = [*EMPTY, "\ud800"]  # the last is half of a surrogate pair
    texts = [*blank, "你好", *UNUSUAL, ""]
    replies = [reply_of(responder, text) for text in texts]
    assert [reply == EMPTY_QUESTION_REPLY for reply in replies] == [text in blank for text in texts]
    assert all(reply.strip() and len(reply.splitlines()) == 1 for reply in replies)
    assert replies_of(responder, texts) == replies
    assert len({*replies}) > 3
    assert responder.replier.search.graph.traces == 1  # type: ignore[attr-defined]


LENGTH = SETTINGS.model.max_length


def ids_line_by_line(responder: TextResponder, text: str) -> list[int]:
    """The ids of a text: one line after another is added from its end, and all are tokenised anew, until they are long.

    A line without ids is no text.
    """
    ids: list[int] = []
    lines = [line for line in text.split("\n") if line.strip()]
    for first in range(len(lines) - 1, -1, -1):
        longer = responder.ids("\n".join(lines[first:]))
        if ids and len(longer) > LENGTH:
            break
        ids = longer
    return ids[:LENGTH]


@functools.cache
def table_responder(tokenizer: str) -> TextResponder:
    return Table().responder(DecodingSettings(), length=LENGTH, tokenizer=tokenizer)


@contextlib.contextmanager
def counted(responder: TextResponder) -> Iterator[list[int]]:
    """The numbers of characters that the tokenizer sees in the block, of each call."""
    work, tokens = list[int](), responder._tokens

    def counting(text: str) -> list[str]:
        work.append(len(text))
        return tokens(text)

    responder._tokens = counting
    yield work
    responder._tokens = tokens


@pytest.mark.parametrize("tokenizer", ["char", "jieba"])
@hypothesis.given(st.lists(st.text("你好吗a他 \t\r\u200b😀", max_size=9) | st.just(""), max_size=30).map("\n".join))
@hypothesis.example("吗吗吗吗吗吗吗\n\u200b")
@hypothesis.settings(max_examples=100)
def test_lines_that_are_read_are_those_of_the_slow_twin(tokenizer: str, text: str) -> None:
    responder = table_responder(tokenizer)
    expected = ids_line_by_line(responder, text)
    with counted(responder) as work:
        assert responder.source(text, ()).ids == expected
    assert len(work) <= 2 * math.log2(2 + text.count("\n")) + 4


def test_the_end_of_a_text_is_read_where_all_of_it_would_fit() -> None:
    assert (
        Table().responder(DecodingSettings(), length=5000).source("你\n" * 1500 + "好", ()).ids[-1]
        == VOCABULARY.id_of["好"]
    )


@pytest.mark.parametrize(
    "text", ["你" * 2000, "\n" * 2000, "\n" * 1998 + "你好", "你好" + "\n" * 1998, "你\n" * 1000, "吗\n" * 99_000]
)
def test_tokenisation_is_bounded(text: str) -> None:
    """Bots pass a text on as it is. Turns that do not fit are not tokenised. Of several lines, all are looked up."""
    responder = Table().responder(DecodingSettings(), length=50, history=3)
    for history, most in (((), 1), (("你" * 5000,) * 3, 2)):
        with counted(responder) as work:
            responder.source(text, history)
        assert sum(work) <= (most + ("\n" in text.strip())) * MAX_CHARACTERS


@pytest.mark.parametrize("text", ["你好", "你好" * LENGTH])
def test_a_line_is_tokenised_once(text: str) -> None:
    """Also to look all of it up, and to tell what the model has read of it."""
    responder = Table().responder(DecodingSettings(beam_size=1), length=LENGTH)
    with counted(responder) as work:
        assert answer_of(responder, Question(text)).read == ["" if len(text) <= LENGTH else text[:LENGTH]]
    assert work == [len(text)]


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
    responder = responder_of(
        dataclasses.replace(trained, settings=settings, vocabulary=vocabulary), DecodingSettings(beam_size=1)
    )
    tokens = vocabulary.tokens_of(responder.source("你好", history).ids)
    assert "".join({MARKS[0]: "<", MARKS[1]: ">"}.get(token, token) for token in tokens) == source
    assert responder.source(" ", ["好"]).ids == []
    without = responder_of(trained, DecodingSettings(beam_size=1))
    assert without.source("你好", history).ids == without.ids("你好")


QUESTIONS, REPLIES = [[5, 6, 7], [8], [9, 9, 5, 6, 7]], [[6], [7, 8, 9, 5], []]


@pytest.mark.parametrize("architecture", ["lstm-copy-ngrams", "gru-bahdanau-deep", "transformer-copy"])
def test_weights_of_a_batch_are_those_of_each_step(architecture: str) -> None:
    model = tiny(architecture).trained.model
    found = TensorFlowModel(model).attention(QUESTIONS, REPLIES)
    for weights, question, reply in zip(found, QUESTIONS, REPLIES, strict=True):
        state = model.encode(model.sequences(np.array([question])))
        assert weights.shape == (len(reply) + 1, len(question))
        for token, of_step in zip([BOS, *reply], weights, strict=True):
            state["attention"] = tf.zeros([1, len(question)])
            _, state = model.step(state, tf.constant([token]))
            np.testing.assert_allclose(state["attention"][0], of_step, atol=1e-5)
            assert of_step.sum() == pytest.approx(1, rel=1e-5)
    assert np.ptp(found[2]) > 0.01  # not uniform


def test_bytes_of_a_character_are_one_word() -> None:
    question, reply = VOCABULARY.ids(["ab", "猫", "é", "你"]), VOCABULARY.ids(["😀", "好"])
    assert words(VOCABULARY, question) == [("ab", 1), ("猫", 3), ("é", 2), ("你", 1)]
    assert words(VOCABULARY, reply) == [("😀", 4), ("好", 1)]
    assert words(VOCABULARY, question[:2]) == [("ab", 1), ("\ufffd", 1)]  # truncated
    (by_id,) = TensorFlowModel(tiny("lstm-copy-ngrams").trained.model).attention([question], [reply])  # [6, 7]
    found = attention_by_word(VOCABULARY, question, reply, by_id)
    assert (found.question, found.reply) == (["ab", "猫", "é", "你"], ["😀", "好", END])
    assert found.weights.shape == (3, 4)
    assert found.weights[0, 1] == pytest.approx(by_id[:4, 1:4].sum(axis=1).mean())
    np.testing.assert_allclose(found.weights.sum(axis=1), 1, rtol=1e-5)


def test_attention_is_that_of_the_ids(trained: Trained) -> None:
    responder = responder_of(trained, DecodingSettings())
    # 你好, 吗, 好, three bytes, and 好, 吗, 好, three bytes: --max-length 6
    shown = responder.attention("你好吗好他他", "好吗好他他")
    assert shown is not None
    ids = responder.ids("你好吗好他"), responder.ids("好吗好他")
    (weights,) = TensorFlowModel(trained.model).attention([ids[0]], [ids[1]])
    expected = attention_by_word(trained.vocabulary, *ids, weights)
    assert (shown.question, shown.reply) == (["你好", "吗", "好", "他"], ["好", "吗", "好", "他", END])
    np.testing.assert_array_equal(shown.weights, expected.weights)
    settings = replace(SETTINGS, attention="none")
    model = build_model(settings.model, len(trained.vocabulary), seed=1)
    without = dataclasses.replace(trained, settings=settings, model=model)
    assert responder_of(without, DecodingSettings()).attention("你好", "好") is None
