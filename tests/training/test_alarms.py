"""Runs that go wrong: skipped updates, after which a run goes back, and a loss that diverges.

Nothing is traced: `tests/training/test_variable_update.py` has the updates themselves.
"""

import dataclasses
import json
import math
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.errors import UserError
from chatbot.training import alarms
from chatbot.training.alarms import Divergence
from chatbot.training.checkpoints.progress import Progress
from chatbot.training.run import Run
from chatbot.training.variable_update import StepResult
from tests.training.attempts import metrics, saved_step, weights
from tests.training.untraced_update import train_untraced

RUN: dict[str, Any] = {"steps": 12, "save_every": 4, "average": 0.9}


@pytest.fixture(autouse=True)
def short_patience(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on the pairs go back after two skipped updates in a row."""
    monkeypatch.setattr(alarms, "PATIENCE", 2)


class EndedError(BaseException):
    """In place of the end of a process."""


def trained(**changes: Any) -> Run:
    """Train with these changes, and return the run."""
    return train_untraced(**{**RUN, **changes})[0]


def state_of(run: Run) -> list[np.ndarray]:
    """The weights, slots, averages and counters of a run."""
    state = tf.nest.flatten(run.train_step.gather_state())
    return [*state, *(weight.numpy() for weight in run.model.trainable_variables)]


@pytest.mark.parametrize("log_every", [1, 5])
def test_single_steps_are_skipped_and_counted(capsys: pytest.CaptureFixture[str], log_every: int) -> None:
    skipped = (1, 3, 8)
    trained(not_finite=skipped, log_every=log_every)
    err = capsys.readouterr().err
    assert err.count("Warning: the loss or the gradient was not finite at step 1; the update was skipped") == 1
    assert err.count("Warning") == 1, "the others are counted only"
    lines = metrics()
    assert [line["skipped_updates"] for line in lines] == [sum(n <= line["step"] for n in skipped) for line in lines]
    if log_every == 1:
        assert [line["step"] for line in lines if line["loss"] is None] == [*skipped]
    assert json.loads(Path("checkpoints/default/last").read_text())["skipped_updates"] == 3
    assert all(np.isfinite(value).all() for value in weights())
    trained(not_finite=(14,), steps=16, log_every=log_every)  # a process warns anew, and counts on
    assert "not finite at step 14; the update was skipped" in capsys.readouterr().err
    assert metrics()[-1]["skipped_updates"] == 4


def test_run_goes_back_to_its_checkpoint_with_half_the_rate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that has changed since is as it was; what a run has counted stays."""
    bad, go_back = {6, 7}, Run.go_back

    def healed(run: Run, *watched: Any) -> None:
        run.train_step.memory.most_positions = 7  # since the checkpoint, memory has run out
        run.progress.logits, run.progress.device_memory = 8, 9
        go_back(run, *watched)
        progress = run.progress
        assert (progress.most_positions, run.train_step.memory.most_positions, progress.logits) == (7, 7, 8)
        assert progress.device_memory == 9
        bad.clear()
        bad.add(10)

    monkeypatch.setattr(Run, "go_back", healed)
    back = trained(not_finite=bad, attempt="back")
    err = capsys.readouterr().err
    place = "returning to the checkpoint of step 4 with half the learning rate, 0.001 (1 of at most 3 times)"
    assert f"Warning: the loss or the gradient was not finite at step 7, 2 in a row: {place}" in err
    assert "at step 6; the update was skipped" in err
    assert "at step 10; the update was skipped" in err, "the first one after the run went back is warned of"
    lines = metrics("back")
    assert [line["step"] for line in lines] == [*range(1, 13)]
    assert [line["learning_rate"] for line in lines] == [0.002] * 4 + [0.001] * 8
    assert [line["skipped_updates"] for line in lines] == [0] * 4 + [2] * 5 + [3] * 3
    kept = json.loads(Path("checkpoints/back/last").read_text())  # for a resumed run
    assert (kept["rate_halvings"], kept["skipped_updates"], kept["skipped_in_a_row"]) == (1, 3, 0)

    trained(steps=4, attempt="twin")
    twin = trained(not_finite=(10,), attempt="twin", learning_rate=0.001)
    for a, b in zip(state_of(back), state_of(twin), strict=True):
        np.testing.assert_array_equal(a, b)
    first, again = dataclasses.asdict(twin.progress), dataclasses.asdict(back.progress)
    counted = {"rate_halvings", "halved_rate", "skipped_updates", "most_positions", "logits", "device_memory"}
    assert {name for name in first if first[name] != again[name]} == counted


def test_run_ends_after_it_went_back_three_times(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all its processes, one of which ends after the second time. Another --learning-rate is not halved."""
    go_back, returns = Run.go_back, []

    def ended_after_two(run: Run, *watched: Any) -> None:
        go_back(run, *watched)
        returns.append(run.progress.step)
        if len(returns) == 2:
            raise EndedError

    monkeypatch.setattr(Run, "go_back", ended_after_two)
    with pytest.raises(EndedError):
        trained(not_finite=range(6, 100), log_every=2)
    kept = "the checkpoint of step 4 is kept: resume from it with a lower --learning-rate"
    with pytest.raises(UserError, match=f"2 in a row, after the run had gone back 3 times; {kept}"):
        trained(not_finite=range(6, 100))
    assert returns == [4] * 3
    err = capsys.readouterr().err
    for number in (1, 3):  # the process ended before it could print the second line
        assert f"step 4 with half the learning rate, {0.002 / 2**number:.3g} ({number} of at most 3 times)" in err
    assert err.count("not finite at step 7, 2 in a row: returning") == 2, (
        "the first two that are skipped, of four steps"
    )
    assert saved_step() == 4
    assert trained(steps=11).rate == 0.002 / 8
    assert trained(learning_rate=0.001).rate == 0.001


def test_updates_are_skipped_in_a_row_over_several_processes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process ends after step 6, which is its last one."""
    monkeypatch.setattr(alarms, "PATIENCE", 3)
    run = trained(not_finite=(5, 6), steps=6)
    assert (run.progress.step, run.progress.rate_halvings) == (6, 0)
    assert trained(not_finite=(5, 6, 7), steps=7).progress.rate_halvings == 1
    assert "not finite at step 7, 3 in a row: returning to the checkpoint of step 6" in capsys.readouterr().err


def test_float16_overflows_are_counted_and_do_not_restore_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    """They lower the loss scale. Two losses that are not numbers do return, with overflows among them."""
    run = trained(overflows=range(2, 9))
    assert (run.progress.skipped_updates, run.progress.rate_halvings) == (7, 0)
    assert "not finite" not in capsys.readouterr().err
    with pytest.raises(UserError, match="at step 5, 2 in a row; no checkpoint was saved"):
        trained(not_finite=(2, 5), overflows=(3, 4), attempt="both", log_every=6, save_every=6)


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
        ([6.0, 9.0, 9.0, 9.0, 5.0, 9.0, 9.0, 9.0], [3, 7], True),  # and diverges again
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


def test_diverging_run_fails_and_keeps_the_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    run: dict[str, Any] = {"save_every": 5, "learning_rate": 0.05}
    with pytest.raises(UserError, match=r"--learning-rate 0.05 is too high; no checkpoint was saved: start again"):
        train_untraced(**run, steps=20, high=range(2, 100))
    assert saved_step() == 0
    train_untraced(**run, steps=2)
    before = weights()
    capsys.readouterr()
    with pytest.raises(UserError, match=r"up from 2\.\d: .*; the checkpoint of step 2 is kept: resume from it with a"):
        train_untraced(**run, steps=20, high=range(3, 100))
    assert capsys.readouterr().err.count("Warning: the loss is ") == 1
    assert saved_step() == 2
    for old, new in zip(before, weights(), strict=True):
        assert (old == new).all()
    assert train_untraced(**run, steps=4)[1].step == 4


def test_spike_is_reported_and_saving_continues_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    train_untraced(high=range(3, 9), steps=12)
    assert ": --learning-rate 0.002 is too high; nothing is saved until the loss falls" in capsys.readouterr().err
    assert saved_step() == 12


def test_loss_that_is_logged_because_of_a_signal_does_not_count() -> None:
    """An uninterrupted run would not log it. With it, three losses would be high."""
    strike = {12: lambda: os.kill(os.getpid(), signal.SIGINT)}
    _, result = train_untraced(
        high=range(2, 13), strike=lambda step: strike.get(step, int)(), steps=20, log_every=5, save_every=100
    )
    assert (result.interrupted, saved_step()) == (True, 12)
