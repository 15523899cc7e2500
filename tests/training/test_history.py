"""An attempt with history: evaluation and chat read the same sources as training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chatbot.chat.loading import LoadedModel, ModelCard
from chatbot.config.chat import ChatSettings
from chatbot.config.corpus import CorpusSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.dataset import encode
from chatbot.corpus.files import corpus_files
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.selection import Selection
from chatbot.errors import UserError
from chatbot.evaluation.evaluate import evaluate
from chatbot.inference.replier import Replier
from chatbot.inference.reply_text import Reply
from chatbot.inference.responder import Responder
from chatbot.model.saved import Trained, load_trained
from tests.chat.terminal.typed import piped
from tests.training.untraced_update import train_untraced

TALKS = [[f"第{talk}句", "好的", f"再说{talk}", "再见"] for talk in range(12)]
SETTINGS: dict[str, Any] = {"data": ("talks.jsonl",), "history": 2, "tokenizer": "char", "validation": "none"}


@pytest.fixture
def trained(work_dir: Path) -> Trained:
    """An attempt of one step in the current folder, beside its conversations."""
    Path("talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in TALKS))
    train_untraced(**SETTINGS, vocabulary_size=320, attempt="whole", steps=1)
    return load_trained(Path("checkpoints/whole"))


def test_attempt_keeps_its_history(trained: Trained) -> None:
    with pytest.raises(UserError, match="--history 2 -> 1"):
        train_untraced(**{**SETTINGS, "history": 1}, vocabulary_size=320, attempt="whole", steps=4)
    with pytest.raises(UserError, match="--history 3: --attempt whole was trained with --history 2; give at most"):
        ChatSettings("whole", history=3).turns_of(trained.settings.encoding.history)
    assert [ChatSettings(history=given).turns_of(2) for given in (None, 0, 1, 2)] == [2, 0, 1, 2]


def test_evaluation_and_chat_read_the_same_sources(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[list[int]] = []

    def recorded(replier: Replier, questions: Sequence[Sequence[int]], *others: Any) -> list[list[Reply]]:
        sources.extend(map(list, questions))
        return candidates(replier, questions, *others)

    candidates = Replier.candidates
    monkeypatch.setattr(Replier, "candidates", recorded)
    settings = CorpusSettings(data=("talks.jsonl",), tokenizer="char", clean=("control",), cache="cache")
    files, max_length = corpus_files(find_sources(settings.data), settings), trained.settings.model.max_length
    corpus = encode(files, Selection(), trained.vocabulary, trained.settings.encoding.history, max_length)
    measures = evaluate(trained, corpus, DecodingSettings(beam_size=1))
    of_evaluation, sources[:] = sorted(sources), []
    assert measures["pairs"] == 3 * len(TALKS)
    responder = Responder(trained, DecodingSettings(beam_size=1))
    for talk in TALKS:
        for turn in range(1, len(talk)):
            responder.reply(talk[turn - 1], history=talk[: turn - 1])
    assert sorted(sources) == of_evaluation
    marks = {trained.vocabulary.first_mark, trained.vocabulary.first_mark + 1}
    assert max(sum(token in marks for token in source) for source in sources) == 3


def test_pipe_is_a_conversation_and_an_empty_line_begins_another(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    class Recorded(Responder):
        def reply(self, text: str, history: Sequence[str] = (), last_reply: str | None = None) -> str:
            histories.append([turn.strip() for turn in history])
            return super().reply(text, history, last_reply)

    capsys.readouterr()
    histories: list[list[str]] = []
    model = LoadedModel(Path("whole"), ModelCard("whole", 1, ()), 2, lambda decoding: Recorded(trained, decoding))
    piped(model, "甲\n乙\n/new\n\n丙\n", "--beam-size", "1")
    replies = capsys.readouterr().out.split("\n")
    assert len(replies) == 5 + 1
    assert histories == [[], ["甲", replies[0]], ["乙", replies[1]], ["/new", replies[2]], []]
