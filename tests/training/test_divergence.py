"""A loss that stays far above where it began is reported once, and the run fails; a spike changes nothing."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.errors import UserError
from chatbot.training.alarms import Divergence
from chatbot.training.checkpoints.manifest import Progress
from chatbot.training.step import StepResult
from tests.training.attempts import saved_step, weights
from tests.training.small_run import train_small


def result_of(loss: float) -> StepResult:
    """The result of a step on two towers, the second of which has three times as many tokens."""
    return StepResult(np.array([0.5, 3.5]) * loss, np.array([1.0, 3.0]), 1, 1.0, math.isfinite(loss))


@pytest.mark.parametrize(
    ("losses", "starts", "diverges"),
    [
        ([6.0, 8.1, 8.1, 8.1, 8.1], [3], True),
        ([6.0, 7.8, 7.8, 7.8, 7.8], [], False),  # below a uniform guess and the margin
        ([1.0, 7.8, 7.8, 7.8, 7.8], [], False),  # an easy first batch, or a resumed run
        ([9.0, 9.8, 9.8, 9.8, 9.8], [], False),  # it began that high
        ([6.0, 50.0, 50.0, 5.0, 50.0, 50.0, 5.0], [], False),  # spikes
        ([6.0, 9.0, 9.0, 9.0, 5.0], [3], False),  # it has recovered
        ([6.0, 1e30], [1], True),
        ([6.0, 9.0, math.nan, 9.0, 9.0], [4], True),
    ],
)
def test_divergence_is_a_loss_that_stays_far_above_its_start(
    losses: list[float], starts: list[int], diverges: bool
) -> None:
    """A process for each record."""
    stored = asdict(Progress())
    begins = []
    for step, loss in enumerate(losses):
        divergence = Divergence(1000, progress := Progress(**stored))
        begins.append(divergence.record(step, result_of(loss)))
        stored = asdict(progress)
    assert [i for i, has_begun in enumerate(begins) if has_begun] == starts
    assert divergence.diverges == diverges


def test_diverging_run_fails_and_keeps_the_checkpoint(pairs_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run: dict[str, Any] = {"data": (str(pairs_file),), "save_every": 5}
    with pytest.raises(UserError, match=r"--learning-rate 1000 is too high; no checkpoint was saved: start again"):
        train_small(1, **run, steps=20, learning_rate=1e3)
    assert saved_step() == 0
    train_small(1, **run, steps=2)
    before = weights()
    capsys.readouterr()
    with pytest.raises(UserError, match=r"the checkpoint of step 2 is kept: resume from it with a lower --learning-"):
        train_small(1, **run, steps=20, learning_rate=1e3)
    assert capsys.readouterr().err.count("Warning: the loss is ") == 1
    assert saved_step() == 2
    for old, new in zip(before, weights(), strict=True):
        assert (old == new).all()
    assert train_small(1, **run, steps=4) == 0


def test_spike_is_reported_and_saved_over(
    pairs_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Divergence.record

    def high_for_a_while(divergence: Divergence, step: int, result: StepResult) -> bool:
        return record(divergence, step, result_of(1e4) if 3 <= step <= 8 else result)

    monkeypatch.setattr(Divergence, "record", high_for_a_while)
    assert train_small(1, data=(str(pairs_file),), steps=12) == 0
    assert ": --learning-rate 0.002 is too high; nothing is saved meanwhile" in capsys.readouterr().err
    assert saved_step() == 12
