"""Several processes skip the same updates."""

from pathlib import Path

import numpy as np
import pytest

from tests.training.attempts import metrics, weights
from tests.training.machines.running import train
from tests.training.test_skipped_updates import HUGE


@pytest.mark.parametrize(
    "flags", [("--local-workers", "2", "--towers", "2"), ("--asynchronous", "--local-workers", "2")], ids=" ".join
)
def test_processes_skip_the_same_updates(pairs_folder: Path, flags: tuple[str, ...]) -> None:
    """The weight of one pair makes its loss overflow, once in each epoch of four steps."""
    rows = [f"what is {i}\tit is {i * 7 % 10}\t{HUGE if i == 5 else 1}" for i in range(24)]
    Path("pairs.tsv").write_text("question\tanswer\tweight\n" + "\n".join(rows) + "\n")
    steps = ("--batch-size", "6", "--steps", "16", "--log-every", "1", "--save-every", "8")
    command = train(*flags, "--weight-column", "weight", *steps)
    assert command.wait() == 0, command.output
    assert command.output.count("the update was skipped") == 1
    assert metrics()[-1]["skipped_updates"] == 4
    assert all(np.isfinite(value).all() for value in weights())
