"""The curves in the event files, which resumed runs continue, as TensorBoard's Python reader reads them."""

import os
from pathlib import Path

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from chatbot.training.reporting.reporter import Reporter
from chatbot.training.reporting.tensorboard import TensorBoard
from tests.training.attempts import metrics
from tests.training.reporting.fake_run import fake_run, record_of, wait_for_next_second


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
            reporter.went_back()
    assert len(os.listdir("/dev/fd")) < open_files + 10
    reporter.close()
    expected = [(1, 1.0), (2, 2.0), (3, 2.0), (4, 3.0), (5, 3.0)]
    assert [(line["step"], line["loss"]) for line in metrics("a")] == expected
    assert points("gpu_0") == points("all") == expected
    assert len([*Path("tensorboard/a/gpu_0").iterdir()]) == 1
    # The first line is of step 1; the last one has the mean of what is left after it.
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [["1", "1.0000"], ["5", "3.0000"]]
