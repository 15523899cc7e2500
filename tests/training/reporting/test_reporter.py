"""What a run writes: metrics.jsonl, TensorBoard's event files, wandb; and what happens when it cannot be written."""

import importlib.util
import json
import os
import resource
import signal
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from chatbot import commands
from chatbot.config.training import Settings
from chatbot.training.checkpoints.progress import Progress
from chatbot.training.reporting import reporter
from chatbot.training.reporting.reporter import Reporter, append_record, conclude, drop_after
from chatbot.training.reporting.tensorboard import TensorBoard
from chatbot.training.result import INTERRUPTED
from tests.training.attempts import metrics
from tests.training.reporting.fake_run import fake_run, record_of, wait_for_next_second
from tests.training.reporting.wandb_files import run_of
from tests.training.untraced_update import train_untraced


def rates(towers: list[str]) -> dict[str, list[float]]:
    """A throughput of each tower."""
    return {"tower_target_tokens_per_s": [100.0] * len(towers)}


def points(run: str) -> list[tuple[int, float]]:
    """The step and the value of each point of a loss curve, as TensorBoard reads them."""
    reader = EventAccumulator(f"tensorboard/a/{run}", tensor_size_guidance={"scalars": 0}).Reload()
    return [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in reader.Tensors("loss")]


def test_points_after_the_restored_step_are_shown_once(work_dir: Path) -> None:
    """A run is killed at step 35, within an event, and resumed at step 20 with other devices and a longer interval."""

    def write(towers: list[str], first: int, steps: range) -> None:
        wait_for_next_second()
        tensorboard = TensorBoard("a", towers, first)
        for step in steps:
            losses = {"loss": float(first), "tower_losses": [1.0] * len(towers)}
            tensorboard.record({"step": step, **losses, **rates(towers)})
        tensorboard.close()

    write(["cpu_0", "cpu_1"], 0, range(1, 36))
    for file in Path("tensorboard").glob("a/*/events*"):
        file.write_bytes(file.read_bytes()[:-3])
    write(["cpu_0"], 20, range(30, 41, 10))
    assert points("all") == [*((step, 0.0) for step in range(1, 21)), (30, 20.0), (40, 20.0)]
    assert [step for step, _ in points("cpu_0")] == [*range(1, 21), 30, 40]


def test_run_that_goes_back_twice_has_each_step_once_everywhere(
    work_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of many towers are not open meanwhile; that of a tower without tokens has no loss."""
    towers = [f"gpu_{i}" for i in range(70)]
    run = fake_run(9, report_to="tensorboard")
    open_files = len(os.listdir("/dev/fd"))
    reporter = Reporter(run, towers, now=lambda: 0.0)
    for visit, kept in enumerate((1, 3, 3), 1):
        for step in range(run.progress.step + 1, 6):
            run.progress.step = step
            reporter.advance()
            losses = [*[float(visit)] * (len(towers) - 1), None]
            reporter.record({**record_of(step, float(visit)), "tower_losses": losses, **rates(towers)})
        if visit < 3:
            run.progress.step = kept
            reporter.rewind()
    assert len(os.listdir("/dev/fd")) < open_files + 10
    reporter.close()
    expected = [(1, 1.0), (2, 2.0), (3, 2.0), (4, 3.0), (5, 3.0)]
    assert [(line["step"], line["loss"]) for line in metrics("a")] == expected
    assert points("gpu_0") == points("all") == expected
    assert len([*Path("tensorboard/a/gpu_0").iterdir()]) == 1
    # The first line is of step 1; the last one has the mean of what is left after it.
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [["1", "1.0000"], ["5", "3.0000"]]


def test_summary_of_a_run(work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def summary(stop: str, *replies: str, chief: bool = True, step: int = 1200, **settings: Any) -> list[str]:
        run = fake_run(chief=chief, **settings)
        run.progress = Progress(step=step, best_step=1000, best_value=2.5 if replies else None)
        run.data.questions = [SimpleNamespace(question="你\n好")] * len(replies)
        conclude(run, stop, 1100, 75, replies)
        return capsys.readouterr().out.splitlines()

    stopped = "Stopped at step 1,200: interrupted."
    time, tensorboard = "Time: 0:01:15 for 100 steps", "Curves: tensorboard --logdir tensorboard/a"
    assert summary(INTERRUPTED) == [
        stopped,
        time,
        "Best: the last checkpoint, of step 1,200, in checkpoints/a",
        "Saved. The same command resumes from here; to talk to it: python chat.py --attempt a",
    ]
    assert summary("so", "早", "好", report_to="tensorboard")[1:] == [
        *("Sample replies:", "  你↵好 -> 早", "  你↵好 -> 好", time),
        "Best: 2.5000 nats per character at step 1,000, in checkpoints/a",
        *(tensorboard, "Talk to it: python chat.py --attempt a"),
    ]
    assert summary(INTERRUPTED, chief=False) == [stopped]
    nothing = "Stopped at step 0: interrupted. Nothing was saved; the same command starts again."
    assert summary(INTERRUPTED, step=0) == [nothing]
    append_record(Path("checkpoints/a/metrics.jsonl"), {"step": 1, "loss": 1.0})
    monkeypatch.setattr(reporter, "MIN_RECORDS", 1)
    assert "Picture: checkpoints/a/curves.png" in summary(INTERRUPTED)
    monkeypatch.setattr(reporter, "draw", lambda *_: 1 // 0)
    failed = fake_run()
    failed.progress.step = 1
    conclude(failed, INTERRUPTED, 0, 1, [])
    printed = capsys.readouterr()
    assert printed.err == "Warning: curves.png cannot be drawn (integer division or modulo by zero).\n"
    assert "Picture" not in printed.out


def test_non_finite_numbers_are_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    record = {"step": 1, "loss": 1.0, "gradient_norm": np.float64("inf"), "tower_losses": [None, float("nan")]}
    append_record(path, record)
    assert json.loads(path.read_text()) == {"step": 1, "loss": 1.0, "gradient_norm": None, "tower_losses": [None, None]}


def test_full_disk_leaves_complete_lines(tmp_path: Path) -> None:
    """A limit of the file's size stands for the disk: the first bytes of a line are written, and then no more."""
    path = tmp_path / "metrics.jsonl"
    append_record(path, {"step": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            append_record(path, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    append_record(path, {"step": 3})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 3]


def test_lines_after_the_restored_step_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\nbroken\n{"step": 3}\n{"st')
    drop_after(path, 2)
    append_record(path, {"step": 3, "loss": 1.0})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 1.0}]


def test_failing_tensorboard_is_reported_once_until_it_works_again(
    pairs_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = TensorBoard.record

    def fails(self: TensorBoard, record: dict[str, float]) -> None:
        if record["step"] in (2, 3, 5):
            raise OSError("no space left on device")
        write(self, record)

    monkeypatch.setattr(TensorBoard, "record", fails)
    train_untraced(steps=6, attempt="a", report_to="tensorboard")
    assert capsys.readouterr().err.count("TensorBoard cannot be written (no space left on device)") == 2
    assert [line["step"] for line in metrics("a")] == [1, 2, 3, 4, 5, 6]


def test_warning_is_shown_everywhere(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts: list[tuple[str, int]] = []
    monkeypatch.setattr(TensorBoard, "warning", lambda self, *written: texts.append(written))
    run = fake_run(60, report_to="tensorboard")
    run.progress.step = 7
    reporter = Reporter(run, ["gpu_0", "gpu_1"])
    reporter.warn("gpu_1 takes 300 ms")
    reporter.close()
    assert texts == [("gpu_1 takes 300 ms", 7)]
    assert "Warning: gpu_1 takes 300 ms.\n" in capsys.readouterr().err


@pytest.mark.slow
def test_wandb_has_the_curves_of_tensorboard(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start of an attempt is a run of its own, with the steps of this start. The user has set nothing."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    wandb = pytest.importorskip("wandb")
    for steps in (2, 4):
        train_untraced(attempt="a", steps=steps, report_to="wandb")
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
    train_untraced(steps=2, attempt="a", report_to="wandb")
    assert "Warning: wandb cannot be started (refused); training continues without it.\n" in capsys.readouterr().err
    assert Path("tensorboard/a/all").exists()


def test_missing_client_is_reported_before_pairs_are_read(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = {"wandb": ModuleSpec("wandb", None)}  # of that name, where the client writes
    monkeypatch.setattr(importlib.util, "find_spec", folder.get)
    monkeypatch.setattr("sys.argv", ["train.py", "--data", "none.tsv", "--report-to", "wandb"])
    assert commands.main("train") == 2
    assert capsys.readouterr().err == "error: --report-to wandb: wandb is not installed; run `pip install wandb`\n"
    assert list(Path().iterdir()) == []
