"""--report-to: what the exporters write, read back with the readers of their clients, and what happens without them."""

import csv
import importlib.util
import json
import math
import os
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from chatbot import commands
from chatbot.config.run import MLFLOW, WANDB
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.evaluation.samples import Sample
from chatbot.flags import compose
from chatbot.training.reporting import reporter
from chatbot.training.reporting.csv_file import Csv
from chatbot.training.reporting.exporters import open_exporter
from chatbot.training.result import INTERRUPTED
from tests.training.reporting.wandb_files import run_of
from tests.training.small_run import train_small, validation_of

TOWERS = ["gpu_0", "gpu_3"]
SAMPLES = [Sample([5], "你好", "你好呀"), Sample([6], "a|b", "c")]


def settings_of(attempt: str = "a", **values: Any) -> Settings:
    """The settings of an attempt, whose folder exists."""
    settings = compose(Settings, attempt=attempt, **values)
    settings.run.directory.mkdir(parents=True, exist_ok=True)
    return settings


def record(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, "loss": 9.0 - step, "tower_losses": [1.5, None], "input_wait": math.nan, **values}


def rows(path: str = "checkpoints/a/metrics.csv") -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_the_values_of_metrics_jsonl(pairs_file: Path) -> None:
    Path("held_out.tsv").write_text("你好\t你好呀\n")
    validation = {"validation": "held_out.tsv", "validate_every": 2}
    train_small(2, data=(str(pairs_file),), **validation, steps=3, attempt="a", report_to="csv")
    lines = [json.loads(line) for line in Path("checkpoints/a/metrics.jsonl").read_text().splitlines()]
    assert [float(row["loss"]) for row in rows()] == [line["loss"] for line in lines]
    for place in (0, 1):
        name = f"tower_losses/cpu_{place}"
        assert [float(row[name]) for row in rows()] == [line["tower_losses"][place] for line in lines]
    nats = [row["validation/nats_per_character"] for row in rows()]
    assert nats == [str(line.get("validation.nats_per_character", "")) for line in lines]
    assert nats[0] == ""
    assert not Path("tensorboard").exists()


def test_csv_columns_keep_their_places(work_dir: Path) -> None:
    exporter = Csv(settings_of(), TOWERS, 0)
    for step in (1, 2):
        exporter.record(record(step))
    before = Path("checkpoints/a/metrics.csv").read_text().splitlines()
    assert before == ["step,loss,tower_losses/gpu_0", "1,8.0,1.5", "2,7.0,1.5"]
    exporter.record(record(3, **{"validation.bleu": 1}, tower_losses=[2, 3]))
    exporter.record(record(4))
    after = Path("checkpoints/a/metrics.csv").read_text().splitlines()
    assert after == [
        "step,loss,tower_losses/gpu_0,tower_losses/gpu_3,validation/bleu",
        *("1,8.0,1.5,,", "2,7.0,1.5,,", "3,6.0,2,3,1", "4,5.0,1.5,,"),
    ]


def test_csv_of_a_resumed_attempt_goes_on_after_its_checkpoint(work_dir: Path) -> None:
    exporter = Csv(settings_of(), TOWERS, 0)
    for step in (1, 2, 3):
        exporter.record(record(step))
    with Path("checkpoints/a/metrics.csv").open("a") as file:
        file.write("4,5.")  # the process is killed
    resumed = Csv(settings_of(), TOWERS, 2)
    resumed.record(record(3, loss=0.5))
    assert [(row["step"], row["loss"]) for row in rows()] == [("1", "8.0"), ("2", "7.0"), ("3", "0.5")]


@pytest.fixture
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a user who has set nothing."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_offline")
def test_wandb_goes_on_with_its_run(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wandb = pytest.importorskip("wandb")
    killed = open_exporter(WANDB, settings_of(rnn_size=32), TOWERS, 0)
    for step in (1, 2, 3):
        killed.record(record(step))
    killed.validation(validation_of(4.5, ["你好吗", "d"]), SAMPLES, 4)
    killed.record(record(4, **{"validation.nats_per_character": 4.5}))
    killed.close("")
    resumed = open_exporter(WANDB, settings_of(rnn_size=32), TOWERS, 3)  # from the checkpoint of step 3
    for step in (4, 5):
        resumed.record(record(step, loss=0.5))
    resumed.warning("replies collapse", 5)
    resumed.close(INTERRUPTED)
    wandb.teardown()  # as at the end of a process; the files may be written until then
    first, second = (run_of(path) for path in sorted(Path("wandb").glob("offline-run-*/run-*.wandb")))
    assert first["id"] == second["id"] == json.loads(Path("checkpoints/a/wandb.json").read_text())["id"]
    assert (first["config"]["rnn_size"], first["exit"], second["exit"]) == (32, 1, 130)
    assert {step: values["loss"] for step, values in first["history"].items()} == {1: 8, 2: 7, 3: 6, 4: 5}
    assert first["history"][1]["tower_losses/gpu_0"] == 1.5
    assert first["history"][4]["validation/nats_per_character"] == 4.5
    (table,) = Path("wandb").glob(f"offline-run-*/files/{first['history'][4]['replies/path']}")
    assert json.loads(table.read_text())["data"] == [["你好", "你好吗", "你好呀"], ["a|b", "d", "c"]]
    assert {step: values["loss"] for step, values in second["history"].items()} == {5: 0.5}  # 4 is not doubled
    assert second["history"][5]["warning"] == "replies collapse"
    assert second["summary"]["stopped"] == INTERRUPTED
    assert f"wandb: offline, in {work_dir}/wandb/offline-run-" in capsys.readouterr().out


@pytest.mark.usefixtures("_offline")
def test_mlflow_goes_on_with_its_run(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    killed = open_exporter(MLFLOW, settings_of(rnn_size=32), TOWERS, 0)
    for step in (1, 2):
        killed.record(record(step))
    killed.validation(validation_of(4.5, ["你好吗", "d"]), SAMPLES, 3)
    killed.record(record(3, **{"validation.nats_per_character": 4.5}))
    killed.close("")
    resumed = open_exporter(MLFLOW, settings_of(rnn_size=32, patience=7), TOWERS, 2)
    for step in (3, 4):
        resumed.record(record(step, loss=0.5))
    resumed.warning("replies collapse", 4)

    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{work_dir}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("chatbot").experiment_id])
    assert (run.info.run_name, run.info.status) == ("a", "RUNNING")
    resumed.close("step 4 was the last one")
    run = client.get_run(run.info.run_id)
    assert run.info.status == "FINISHED"
    assert (run.data.params["rnn_size"], run.data.params["patience"]) == ("32", "3")
    assert run.data.tags["changed.patience"] == "7"
    assert run.data.tags["stopped"] == "step 4 was the last one"
    assert run.data.tags["warning.4"] == "replies collapse"
    losses = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "loss")]
    assert losses == [(1, 8.0), (2, 7.0), (3, 6.0), (4, 0.5)]  # 3 is not doubled
    assert [metric.value for metric in client.get_metric_history(run.info.run_id, "tower_losses/gpu_0")] == [1.5] * 4
    (metric,) = client.get_metric_history(run.info.run_id, "validation/nats_per_character")
    assert (metric.step, metric.value) == (3, 4.5)
    replies = json.loads(Path(client.download_artifacts(run.info.run_id, "replies/3.json")).read_text())
    assert replies == {"question": ["你好", "a|b"], "reply": ["你好吗", "d"], "reference": ["你好呀", "c"]}

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{work_dir}/other.db")  # which does not have the run
    begun = open_exporter(MLFLOW, settings_of(), TOWERS, 4)
    begun.record(record(5))
    (metric,) = client_metrics(begun)
    assert metric.step == 5
    begun.close("")


def client_metrics(exporter: Any) -> list[Any]:
    """The losses of the run of an exporter."""
    return exporter._client.get_metric_history(exporter._own.id, "loss")


class Broken:
    """A service that cannot be reached after the first record."""

    tries_again = False

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def record(self, record: dict[str, Any]) -> None:
        self._calls.append(f"record {record['step']}")
        if record["step"] == 2:
            raise ConnectionError("no route to host\nmore")

    def validation(self, *arguments: object) -> None:
        self._calls.append("validation")

    def warning(self, text: str, step: int) -> None:
        self._calls.append("warning")

    def close(self, stopped: str) -> None:
        self._calls.append("close")


def test_failing_service_is_left_out(
    pairs_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that cannot be opened, and one that fails in mid-run."""
    calls: list[str] = []

    def opened(name: str, *arguments: Any) -> Any:
        if name == MLFLOW:
            raise ConnectionError("refused")
        return Broken(calls) if name == WANDB else open_exporter(name, *arguments)

    monkeypatch.setattr(reporter, "open_exporter", opened)
    assert train_small(1, data=(str(pairs_file),), steps=4, attempt="a", report_to="mlflow,wandb,csv") == 0
    assert calls == ["record 1", "record 2"]
    assert [row["step"] for row in rows()] == ["1", "2", "3", "4"]
    warnings = [line for line in capsys.readouterr().err.splitlines() if "Warning" in line]
    assert warnings == [
        "Warning: mlflow cannot be written (refused); training goes on without it.",
        "Warning: Broken cannot be written (no route to host); training goes on without it.",
    ]


@pytest.mark.parametrize(
    ("report_to", "message"),
    [
        (
            "tensorbord",
            "--report-to tensorbord: 'tensorbord' is not one of tensorboard, csv, wandb, mlflow; none stands alone",
        ),
        ("csv,,wandb", "--report-to csv,,wandb: '' is not one of"),
        ("none,csv", "--report-to none,csv: 'none' is not one of"),
        ("csv,wandb", "--report-to wandb: wandb is not installed; run `pip install wandb`"),
        ("mlflow", "--report-to mlflow: mlflow, sqlalchemy, alembic are not installed; run `pip install mlflow-skinny"),
    ],
)
def test_what_cannot_be_used_is_refused_before_pairs_are_read(
    work_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    report_to: str,
    message: str,
) -> None:
    found = {"wandb": ModuleSpec("wandb", None)}  # a folder of that name
    monkeypatch.setattr(importlib.util, "find_spec", found.get)
    monkeypatch.setattr("sys.argv", ["train.py", "--data", "none.tsv", "--report-to", report_to])
    assert commands.train() == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert list(Path().iterdir()) == []


def test_names_are_split_once() -> None:
    assert compose(Settings, report_to="csv, tensorboard,csv").run.exporters == ("csv", "tensorboard")
    assert compose(Settings, report_to="none").run.exporters == ()
    assert Settings().run.exporters == ("tensorboard",)
    with pytest.raises(UserError):
        compose(Settings, report_to="")
    with pytest.raises(UserError, match="--histograms all: only for TensorBoard; add tensorboard to --report-to"):
        compose(Settings, report_to="csv", histograms="all")
