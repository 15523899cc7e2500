"""What a user sees about a model, and the threads that compute its replies."""

import json
from pathlib import Path
from typing import Any

import pytest

from chatbot.attempts.files import DATA, learned_questions
from chatbot.chat import loading
from chatbot.chat.loading import ModelCard, card_of_export, version_of
from chatbot.export.manifest import Manifest
from tests.export.untrained import write_attempt


def test_line_of_a_model() -> None:
    for card, line in (
        (
            ModelCard("talk", 1200, ("a.tsv",), 1, 3.25),
            "talk: 1 pair of a.tsv; step 1,200; 3.250 nats per character on ",
        ),
        (ModelCard("talk", 0, ("a", "b"), 2000), "talk: 2,000 pairs of 2 files; step 0; not validated"),
        # It does not have the names of files.
        (card_of_export(Manifest("onnx", "float32", "talk", 250, True)), "talk; step 250; onnx"),
    ):
        assert card.line().startswith(line)


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
def test_name_for_readers(name: str, data: tuple[str, ...], shown: str, sources: list[str]) -> None:
    card = ModelCard(name, 1, data)
    assert (card.name_for_readers(name), card.sources) == (shown, sources)


@pytest.mark.parametrize(
    ("cores", "given", "expected"), [(1, None, "1"), (2, None, "1"), (9, None, "4"), (9, "6", "6")]
)
def test_half_of_the_cores_unless_the_environment_says_otherwise(
    cores: int, given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {} if given is None else {loading.THREADS_VARIABLE: given}
    monkeypatch.setattr(loading.os, "environ", environment)
    monkeypatch.setattr(loading, "cores", lambda: cores)
    loading.limit_threads()
    assert environment[loading.THREADS_VARIABLE] == expected


def test_version_is_that_of_the_pointer_that_is_used(tmp_path: Path) -> None:
    assert version_of(tmp_path) is None
    (tmp_path / "last").write_text("1")
    last = version_of(tmp_path)
    (tmp_path / "best").write_text("1")
    best = version_of(tmp_path)
    (tmp_path / "last").write_text("22")
    assert last is not None
    assert last[0] == "last"
    assert version_of(tmp_path) == best


def test_questions_that_an_attempt_offers(tmp_path: Path) -> None:
    """An attempt of an earlier version has none; the terminal would obey one of them."""
    for data, questions in (
        ({"questions": ["晚安", "\x1b[2J", "加油"]}, ["晚安", "加油"]),
        ({"questions": 3}, []),
        ([], []),
    ):
        (tmp_path / DATA).write_text(json.dumps(data))
        assert learned_questions(tmp_path) == questions


def test_model_that_only_replies_is_frozen(tmp_path: Path) -> None:
    loaded = loading.load_model(write_attempt(tmp_path / "talk"))
    loaded.engine.close()
    model: Any = loaded.responder.model
    assert model.model._columns is not None
