"""--profile writes a trace of its steps only, and never ends a run; GPUs that become slow are named."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from chatbot.config.training import Settings
from chatbot.flags import compose
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.profiling import Profile, TowerTimes, open_profile
from tests.training.small_run import TOWERS


def run_at(step: int, team: Team = ALONE) -> Any:
    """A run that is asked to profile the steps 3 to 5."""
    settings = compose(Settings, attempt="a", profile="3:5")
    return SimpleNamespace(settings=settings, team=team, progress=SimpleNamespace(step=step))


def train(first: int, last: int) -> None:
    with open_profile(run_at(first - 1)) as profile:
        for number in range(first, last + 1):
            with profile.step(number):
                tf.matmul(tf.ones([9, 9]), tf.ones([9, 9]))


@pytest.mark.parametrize(
    ("first", "last", "message", "traced"),
    [
        (1, 9, "Profile: tensorboard --logdir tensorboard/a", 3),
        (1, 4, "Profile: ", 2),  # interrupted within it
        (6, 9, "Nothing is profiled: step 5 of --profile 3:5 is already finished.", 0),
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


def test_nothing_is_said_of_a_profile_that_has_not_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Profile(tmp_path, ()).stop()
    assert capsys.readouterr() == ("", "")


def test_steps_that_a_run_repeats_are_not_profiled_again(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that goes back to a checkpoint repeats them. Each machine writes its own profile."""
    with open_profile(run_at(0, Team(1, 2))) as profile:
        for number in (1, 2, 3, 4, 5, 6, 3, 4, 5, 6):
            with profile.step(number):
                pass
    assert capsys.readouterr().out.count("Profile: ") == 1
    assert len([*Path("tensorboard").glob("a/worker_1/plugins/profile/*")]) == 1


def test_training_continues_if_the_trace_cannot_be_written(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tensorboard").write_text("a file")
    train(1, 9)
    assert "--profile: cannot write to tensorboard/a" in capsys.readouterr().err


def test_tower_that_becomes_slow_is_named_once() -> None:
    times = TowerTimes(MagicMock(), [Tower(f"gpu_{i}", f"/GPU:{i}", "", None) for i in range(4)])
    assert times.slow([]) == []
    assert times.slow([0.010, 0.012, 0.019, 0.011]) == []
    (line,) = times.slow([0.010, 0.012, 0.036, 0.011])
    assert line == (
        "gpu_2 takes 36 ms for its share of a step, and the other towers (median 11 ms) wait for it; "
        "`nvidia-smi -q -d PERFORMANCE` may show why"
    )
    assert len(f"Warning: {line}") < 200
    assert times.slow([]) == []
    assert times.slow([0.010, 0.012, 0.036, 0.011]) == []
    assert times.slow([0.010, 0.012, 0.012, 0.011]) == []
    assert len(times.slow([0.030, 0.012, 0.036, 0.011])) == 2
    assert TowerTimes(MagicMock(), TOWERS).measure(MagicMock()) == [], "towers on CPUs share their cores"
