"""/why in the terminal."""

from typing import Any

import numpy as np
import pytest

from chatbot.chat import terminal
from chatbot.chat.why import NO_ATTENTION, NO_REPLY, table
from chatbot.config.decoding import DecodingSettings
from chatbot.config.training import Settings
from chatbot.corpus.encoding.vocabulary import Vocabulary
from chatbot.flags import compose
from chatbot.inference.responder import Responder
from chatbot.inference.word_attention import END, WordAttention
from chatbot.model.new_model import built_model
from chatbot.model.saved import Trained

ATTENTION = WordAttention(
    ["什么", "是", "ai", "?"],
    ["人工智能", "a\x1b[2J", END],
    np.array([[0.1, 0.2, 0.7, 0], [0.6, 0, 0, 0.4], [1, 0, 0, 0]]),
)


def test_table_is_aligned_with_wide_characters() -> None:
    lines = table(ATTENTION)
    assert lines[0] == "人工智能  ai 0.70    是 0.20  什么 0.10"
    assert lines[1] == "a\ufffd[2J     什么 0.60  ? 0.40   是 0.00"


def responder(**settings: Any) -> Responder:
    """A responder of an untrained model."""
    chosen = compose(Settings, rnn_size=8, embedding_size=6, max_length=4, **settings)
    vocabulary = Vocabulary(["你好", *"你好吗啊"])
    model = built_model(chosen.model, len(vocabulary), seed=1)
    return Responder(Trained(chosen, vocabulary, model, step=0), DecodingSettings(beam_size=1))


def conversation(responder: Responder, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Type these lines into the terminal."""
    typed = iter(lines)
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    terminal._converse(terminal.Conversation(responder, 0), "a model")


def test_why_explains_the_last_reply(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer questions than the model reads are truncated."""
    own = responder()
    lines = ["/why", "你好吗", "/WHY ", "/why", " ", "/why", "吗" * 9, "/why", "exit"]
    conversation(own, lines, monkeypatch)
    printed = capsys.readouterr()
    assert "/why explains a reply" in printed.err
    attention = own.attention("你好吗", own.reply("你好吗"))
    assert attention is not None
    explained = "\n".join(table(attention))
    assert printed.out.count(explained) == 2
    assert printed.out.count(NO_REPLY) == 2
    long = own.attention("吗" * 9, own.reply("吗" * 9))
    assert long is not None
    assert long.question == ["吗"] * 4
    assert printed.out.endswith("\n".join(table(long)) + "\n")


def test_why_without_attention(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    conversation(responder(attention="none"), ["你好", "/why", "exit"], monkeypatch)
    assert capsys.readouterr().out.endswith(NO_ATTENTION + "\n")
