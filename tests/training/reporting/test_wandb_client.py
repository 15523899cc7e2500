"""--report-to wandb: what its client takes from the event files, and what happens without it."""

import importlib.util
import os
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from chatbot import commands
from chatbot.config.training import Settings
from chatbot.training.reporting import reporter
from tests.training.attempts import metrics
from tests.training.reporting.wandb_files import run_of
from tests.training.small_run import train_small


@pytest.fixture
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a user who has set nothing."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)


@pytest.mark.slow
@pytest.mark.usefixtures("_offline")
def test_wandb_has_the_curves_of_tensorboard(pairs_file: Path) -> None:
    """Each start of an attempt is a run of its own, with the steps of this start."""
    wandb = pytest.importorskip("wandb")
    for steps in (2, 4):
        assert train_small(1, data=(str(pairs_file),), attempt="a", steps=steps, report_to="wandb") == 0
    wandb.teardown()  # as at the end of a process; the files may be written until then
    first, second = (run_of(path) for path in sorted(Path("wandb").glob("offline-run-*/run-*.wandb")))
    assert first["config"]["rnn_size"] == 16
    assert [run["exit"] for run in (first, second)] == [0, 0]
    losses = [(values["global_step"], values["loss"]) for run in (first, second) for values in run["history"].values()]
    assert losses == [(line["step"], pytest.approx(line["loss"])) for line in metrics("a")]


def test_training_goes_on_without_wandb(
    pairs_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(settings: Settings) -> None:
        raise ConnectionError("refused\nmore")

    monkeypatch.setattr(reporter, "start_client", refused)
    assert train_small(1, data=(str(pairs_file),), steps=2, attempt="a", report_to="wandb") == 0
    assert "Warning: wandb cannot be started (refused); training goes on without it.\n" in capsys.readouterr().err
    assert Path("tensorboard/a/all").exists()


def test_missing_client_is_named_before_pairs_are_read(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = {"wandb": ModuleSpec("wandb", None)}  # of that name, where the client writes
    monkeypatch.setattr(importlib.util, "find_spec", folder.get)
    monkeypatch.setattr("sys.argv", ["train.py", "--data", "none.tsv", "--report-to", "wandb"])
    assert commands.main("train") == 2
    assert capsys.readouterr().err == "error: --report-to wandb: wandb is not installed; run `pip install wandb`\n"
    assert list(Path().iterdir()) == []
