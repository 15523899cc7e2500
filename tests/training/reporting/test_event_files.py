"""The curves in the event files, which resumed runs continue, as TensorBoard's Python reader reads them."""

import os
from pathlib import Path

import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from chatbot.training.reporting.tensorboard import TensorBoard
from tests.training.reporting.fake_run import wait_for_next_second


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


def test_run_that_goes_back_begins_anew_in_the_same_files(work_dir: Path) -> None:
    """The files of many towers are not open meanwhile; that of a tower without tokens has no loss."""
    towers = [f"gpu_{i}" for i in range(70)]
    open_files = len(os.listdir("/dev/fd"))
    tensorboard = TensorBoard("a", towers, 0)
    for step, value in ((1, 1.0), (2, 1.0), (3, 1.0), (2, 2.0), (3, 2.0)):
        if (step, value) == (2, 2.0):
            tensorboard.begin_after(1)
        losses = [*[value] * (len(towers) - 1), None]
        tensorboard.record({"step": step, "loss": value, "tower_losses": losses, **rates(towers)})
    assert len(os.listdir("/dev/fd")) < open_files + 10
    tensorboard.close()
    assert points("gpu_0") == points("all") == [(1, 1.0), (2, 2.0), (3, 2.0)]
    assert len([*Path("tensorboard/a/gpu_0").iterdir()]) == 1
