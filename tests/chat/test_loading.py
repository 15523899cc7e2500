"""Model cards, and the threads for replies."""

import json
import logging
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from chatbot.attempts.files import DATA, learned_questions
from chatbot.chat import loading
from chatbot.chat.loading import ModelCard, export_card
from chatbot.export.manifest import Manifest
from chatbot.model.seq2seq import Seq2Seq
from tests.export.untrained import write_attempt


def test_summary_line_of_a_model() -> None:
    for card, line in (
        (
            ModelCard("talk", 1200, ("a.tsv",), 1, 3.25),
            "talk: 1 pair from a.tsv; step 1,200; 3.250 nats per character on held-out pairs",
        ),
        (ModelCard("talk", 0, ("a", "b"), 2000), "talk: 2,000 pairs from 2 files; step 0; not validated"),
        # It does not have the names of files.
        (export_card(Manifest("onnx", "float32", "talk", 250, True)), "talk; step 250; onnx"),
    ):
        assert card.summary() == line
    assert export_card(Manifest("onnx", "float32", "talk", 250, True, questions=["晚安"])).questions == ("晚安",)


@pytest.mark.parametrize(
    ("name", "data", "shown", "sources"),
    [
        ("default", ("weibo.conv.gz",), "weibo", ["weibo"]),
        ("default", ("ChatterBot",), "ChatterBot", ["ChatterBot"]),
        ("mine", ("v1.2 talk.TSV",), "mine", ["v1.2 talk"]),  # somebody has chosen the name
        ("default", ("a.json", "b.csv"), "default", ["a", "b"]),
        ("default", (".txt",), ".txt", [".txt"]),
        ("default", (), "default", []),
    ],
)
def test_display_name(name: str, data: tuple[str, ...], shown: str, sources: list[str]) -> None:
    card = ModelCard(name, 1, data)
    assert (card.display_name(name), card.sources) == (shown, sources)


@pytest.mark.parametrize(
    ("cores", "given", "expected"), [(1, None, "1"), (2, None, "1"), (9, None, "4"), (9, "6", "6")]
)
def test_threads_are_half_of_the_cores_by_default(
    cores: int, given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {} if given is None else {loading.THREADS_VARIABLE: given}
    monkeypatch.setattr(loading.os, "environ", environment)
    monkeypatch.setattr(loading, "cores", lambda: cores)
    loading.limit_threads()
    assert environment[loading.THREADS_VARIABLE] == expected


def test_suggested_questions_of_an_attempt(tmp_path: Path) -> None:
    """Old attempts have none. A text with control characters is left out."""
    for data, questions in (
        ({"questions": ["晚安", "\x1b[2J", "加油"]}, ["晚安", "加油"]),
        ({"questions": 3}, []),
        ([], []),
    ):
        (tmp_path / DATA).write_text(json.dumps(data))
        assert learned_questions(tmp_path) == questions


def test_loaded_model_is_frozen_and_shares_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow does not warn of its graphs."""
    freeze, grow = MagicMock(), MagicMock()
    monkeypatch.setattr(Seq2Seq, "freeze", freeze)
    monkeypatch.setattr("chatbot.memory.let_gpu_memory_grow", grow)
    monkeypatch.setattr(logging.getLogger("tensorflow"), "level", logging.WARNING)
    loading.load_model(write_attempt(tmp_path / "talk")).engine.close()
    freeze.assert_called_once_with()
    grow.assert_called_once_with()
    assert not logging.getLogger("tensorflow").isEnabledFor(logging.WARNING)
