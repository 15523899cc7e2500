"""The curves in the event files, which resumed runs continue, as TensorBoard's Python reader reads them."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from chatbot.config.training import Settings
from chatbot.flags import compose
from chatbot.training.reporting.tensorboard import MOST_TOWERS_EACH_STEP, TensorBoard


def rates(towers: list[str]) -> dict[str, list[float]]:
    """A throughput of each tower."""
    return {"tower_target_tokens_per_s": [100.0] * len(towers)}


def points(run: str) -> list[tuple[int, float]]:
    """The step and the value of each point of a loss curve, as TensorBoard reads them."""
    reader = EventAccumulator(f"tensorboard/a/{run}", tensor_size_guidance={"scalars": 0}).Reload()
    return [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in reader.Tensors("loss")]


def test_points_after_the_restored_step_are_shown_once(work_dir: Path) -> None:
    """A run is killed at step 35, within an event, and resumed at step 20 with other devices and a longer interval."""
    settings = compose(Settings, attempt="a")
    settings.run.directory.mkdir(parents=True)

    def write(towers: list[str], first: int, steps: range) -> None:
        tensorboard = TensorBoard(settings, towers, first)
        for step in steps:
            losses = {"loss": float(first), "tower_losses": [1.0] * len(towers)}
            tensorboard.record({"step": step, **losses, **rates(towers)})
        tensorboard.close("")

    write(["cpu_0", "cpu_1"], 0, range(1, 36))
    for file in Path("tensorboard").glob("a/*/events*"):
        file.write_bytes(file.read_bytes()[:-3])
    write(["cpu_0"], 20, range(30, 41, 10))
    assert points("all") == [*((step, 0.0) for step in range(1, 21)), (30, 20.0), (40, 20.0)]
    assert [step for step, _ in points("cpu_0")] == [*range(1, 21), 30, 40]


def test_files_are_read_in_the_order_of_their_seconds(work_dir: Path) -> None:
    """A run that goes back may open the next file at once."""
    for restored in range(3):
        TensorBoard(compose(Settings, attempt="a"), ["cpu_0"], restored).close("")
    files = sorted(Path("tensorboard/a/all").glob("events.out.tfevents.[1-9]*"), key=os.path.getmtime)
    seconds = [int(file.name.split(".")[3]) for file in files]
    assert len(seconds) == 3
    assert seconds == sorted({*seconds})


def test_many_towers_have_a_point_a_minute(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([100.0, 100.0, 159.0, 160.0, 160.0, 161.0, 161.0])  # now, and once more after each point
    monkeypatch.setattr(
        "chatbot.training.reporting.tensorboard.time", SimpleNamespace(**{**vars(time), "monotonic": seconds.__next__})
    )
    towers = [f"gpu_{i}" for i in range(MOST_TOWERS_EACH_STEP + 1)]
    settings = compose(Settings, attempt="a")
    settings.run.directory.mkdir(parents=True)
    open_files = len(os.listdir("/dev/fd"))
    tensorboard = TensorBoard(settings, towers, 0)
    for step in (1, 2, 3, 4):
        losses = [*[float(step)] * (len(towers) - 1), None]
        tensorboard.record({"step": step, "loss": float(step), "tower_losses": losses, **rates(towers)})
    assert len(os.listdir("/dev/fd")) < open_files + 10
    tensorboard.close("")
    assert points("gpu_0") == [(1, 1.0), (3, 2.5), (4, 4.0)]
    assert points("all") == [(step, float(step)) for step in (1, 2, 3, 4)]
    assert not Path("tensorboard/a", towers[-1]).exists()  # its tower had no tokens
