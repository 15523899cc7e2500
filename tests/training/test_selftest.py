"""--selftest passes where towers train as one device, and fails where they do not, or compute nothing."""

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.training import selftest as module
from chatbot.training.devices.towers import Tower
from chatbot.training.gradients import Sums
from chatbot.training.selftest import CASES, SETTINGS, STEPS, masks_differ, sees_every_pair_once, selftest
from chatbot.training.share import Share
from chatbot.training.variable_update import StepResult
from tests.training.light_gradients import light_gradient_function


@pytest.mark.parametrize(
    ("loss", "finite", "trained", "difference"),
    [
        (2.0, True, [1.0, 2.0], "differ by 0.0e+00"),
        (math.nan, False, [0.0, 0.0], "cannot be compared"),  # all updates are skipped
        (math.nan, False, [1.0, 2.0], "cannot be compared"),
        (2.0, True, [0.0, 0.0], "cannot be compared"),
        (2.0, True, [1.0, math.nan], "cannot be compared"),
        (2.0, True, [math.nan, 1.0], "cannot be compared"),
    ],
)
def test_selftest_fails_where_devices_compute_nothing(
    cpus: list[Tower],
    loss: float,
    finite: bool,
    trained: list[float],
    difference: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The weights of all devices are equal, but they may not have been computed."""

    def train(_: Any, towers: list[Tower], __: Any, steps: int = STEPS) -> tuple[list[np.ndarray], list[Any], None]:
        losses = loss + np.arange(len(towers), dtype=np.float32)
        result = StepResult(losses, losses, 1, 1.0, finite)
        return [np.full(3, weight) for weight in (trained if steps else [0.0, 0.0])], [result] * steps, None

    monkeypatch.setattr("chatbot.training.selftest.train_model", train)
    passes = difference.startswith("differ")
    assert selftest(SETTINGS, cpus[:2]) == (0 if passes else 1)
    lines = capsys.readouterr().out.splitlines()
    compared = [line.startswith(f"{'ok  ' if passes else 'FAIL'}  2 towers and 1 {difference} after") for line in lines]
    assert compared == [True] * len(CASES) + [False] * 3
    assert len(lines) == len(CASES) + 3
    assert lines[len(CASES)] == f"{'FAIL' if math.isnan(loss) else 'ok  '}  towers draw different dropout masks"


def test_selftest_passes(
    cpus: list[Tower], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [*CASES] == ["SGD", "Adam", "Adam with clipping", "Adam with a Transformer"]
    monkeypatch.setattr(module, "CASES", {"SGD": CASES["SGD"]})
    assert selftest(replace(SETTINGS, variable_update="replicated"), cpus[:2]) == 0
    assert "Verdict: these devices train together as one." in capsys.readouterr().out
    with pytest.raises(UserError, match="--selftest compares several towers with one; use --towers 2"):
        selftest(SETTINGS, cpus[:1])


def test_selftest_fails_when_towers_disagree(
    cpus: list[Tower], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each one divides its gradients by its own tokens."""

    def mean_of_means(*tower: Any) -> Any:
        function = light_gradient_function(*tower)

        def means(weights: list[tf.Tensor], share: Share, *_: object) -> Sums:
            loss, weight, *gradients = function(weights, share)
            return Sums(loss, weight, *tf.nest.map_structure(lambda gradient: gradient / weight, gradients))

        return means

    monkeypatch.setattr(module, "CASES", {"SGD": CASES["SGD"]})
    monkeypatch.setattr("chatbot.training.step.gradient_function", mean_of_means)
    monkeypatch.setattr(module, "masks_differ", lambda towers: True)
    assert selftest(SETTINGS, cpus[:2]) == 1
    out = capsys.readouterr().out
    assert "FAIL  2 towers and 1 differ by" in out
    assert "do NOT train as one" in out


def test_pair_that_is_left_out_or_seen_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sees_every_pair_once(3)
    batches = module.Batches.from_step
    monkeypatch.setattr(module.Batches, "from_step", lambda self, step, towers: batches(self, step + 1, towers))
    assert not sees_every_pair_once(3)


@pytest.mark.parametrize(("losses", "differ"), [([1, 2, 3], True), ([1, 2, 1], False), ([1, 2, math.nan], False)])
def test_masks_differ_if_all_losses_do(
    losses: list[float], differ: bool, cpus: list[Tower], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = StepResult(np.array(losses), np.ones(3), 3, 1.0, True)
    monkeypatch.setattr(module, "train_model", lambda *_, **__: ([], [result], None))
    assert masks_differ(cpus[:3]) == differ
