"""/why in the terminal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.chat.loading import LoadedModel, ModelCard
from chatbot.chat.terminal.screen import NO_ATTENTION, Screen, attention_rows
from chatbot.config.decoding import DecodingSettings
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.flags import compose
from chatbot.inference.responder import Responder
from chatbot.inference.text_responder import END, WordAttention
from chatbot.model.new_model import built_model
from chatbot.model.saved import Trained
from tests.chat.terminal.typed import Line, typed

ATTENTION = WordAttention(
    ["什么", "是", "ai", "?"],
    ["人工智能", "a\x1b[2J", END],
    np.array([[0.1, 0.2, 0.7, 0], [0.6, 0, 0, 0.4], [1, 0, 0, 0]]),
)


def test_table_is_aligned_with_wide_characters(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().table(attention_rows(ATTENTION))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "人工智能  ai 0.70    是 0.20  什么 0.10"
    assert lines[1] == "a\ufffd[2J     什么 0.60  ? 0.40   是 0.00"


def responder(**settings: Any) -> Responder:
    """A responder of an untrained model."""
    chosen = compose(Settings, rnn_size=8, embedding_size=6, max_length=4, **settings)
    vocabulary = Vocabulary(["你好", *"你好吗啊", *BYTES])
    model = built_model(chosen.model, len(vocabulary), seed=1)
    return Responder(Trained(chosen, vocabulary, model, step=0), DecodingSettings(beam_size=1))


def explained(responder: Responder, lines: list[Line]) -> None:
    """Type these lines into the terminal."""
    typed(LoadedModel(Path("fake"), ModelCard("fake", 1, ()), 0, lambda _: responder), lines)


@pytest.mark.slow
def test_why_explains_the_last_reply(capsys: pytest.CaptureFixture[str]) -> None:
    """Longer questions than the model reads are truncated."""
    own = responder()
    explained(own, ["你好吗", "/why", " ", "/WHY ", "吗" * 9, "/why"])
    out = capsys.readouterr().out
    attention = own.attention("你好吗", own.reply("你好吗"))
    assert attention is not None
    Screen().table(attention_rows(attention))
    assert out.count(capsys.readouterr().out) == 2
    long = own.attention("吗" * 9, own.reply("吗" * 9))
    assert long is not None
    assert long.question == ["吗"] * 4
    Screen().table(attention_rows(long))
    assert out.endswith(capsys.readouterr().out)


@pytest.mark.slow
def test_why_without_attention(capsys: pytest.CaptureFixture[str]) -> None:
    explained(responder(attention="none"), ["你好", "/why"])
    assert capsys.readouterr().out.endswith(NO_ATTENTION + "\n")
