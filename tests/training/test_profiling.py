"""--profile writes a trace of its steps only, and never ends a run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from chatbot.config.training import Settings
from chatbot.flags import compose
from chatbot.training.machines.team import ALONE
from chatbot.training.profiling import profiled


def run_at(step: int) -> Any:
    """A run that is asked to profile the steps 3 to 5."""
    settings = compose(Settings, attempt="a", profile="3:5")
    return SimpleNamespace(settings=settings, team=ALONE, progress=SimpleNamespace(step=step))


def train(first: int, last: int) -> None:
    with profiled(run_at(first - 1)) as profile:
        for number in range(first, last + 1):
            with profile.step(number):
                tf.matmul(tf.ones([9, 9]), tf.ones([9, 9]))


@pytest.mark.parametrize(
    ("first", "last", "message", "traced"),
    [
        (1, 9, "Profile: tensorboard --logdir tensorboard/a", 3),
        (5, 9, "Profile: ", 1),  # resumed within the range
        (1, 4, "Profile: ", 2),  # interrupted within it
        (6, 9, "Nothing is profiled: step 5 of --profile 3:5 is over.", 0),
    ],
)
def test_steps_that_are_profiled(
    first: int, last: int, message: str, traced: int, work_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(first, last)
    assert capsys.readouterr().out.startswith(message)
    files = [*Path("tensorboard").glob("a/plugins/profile/*/*.xplane.pb")]
    planes = [plane for file in files for plane in XSpace.FromString(file.read_bytes()).planes]
    names = [plane.event_metadata[e.metadata_id].name for plane in planes for line in plane.lines for e in line.events]
    assert names.count("train") == names.count("EagerLocalExecute: MatMul") == traced


def test_training_goes_on_without_a_trace(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tensorboard").write_text("a file")
    train(1, 9)
    printed = capsys.readouterr()
    assert "--profile: tensorboard/a cannot be written" in printed.err
    assert printed.out == ""
