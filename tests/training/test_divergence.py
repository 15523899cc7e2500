"""A loss that stays far above where it began is reported once, and the run fails; a spike changes nothing."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from chatbot.errors import UserError
from chatbot.training.alarms import MOST_STEPS, Divergence
from chatbot.training.checkpoints.progress import Progress
from chatbot.training.step import StepResult
from tests.training.attempts import saved_step, weights
from tests.training.small_run import train_small

UNIFORM = math.log(1000)  # 6.9


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
    ],
)
def test_divergence_is_a_loss_that_stays_far_above_its_start(
    losses: list[float], starts: list[int], diverges: bool
) -> None:
    divergence = Divergence(1000, Progress())
    assert [i for i, loss in enumerate(losses) if divergence.record(10 * i, loss)] == starts
    assert divergence.diverges == diverges
    assert divergence.reason_to_stop == ""


def test_divergence_goes_on_in_the_next_process() -> None:
    """The last mean, too: it is that of all steps since the last step that is due to be logged."""

    def result(loss: float) -> StepResult:
        one = tf.constant(1.0)
        return StepResult(tf.constant([loss, loss]), tf.ones(2), one, one, tf.constant(True))

    stored = dataclasses.asdict(Progress())
    begins = []
    for step, losses in enumerate(([6.0], [9.0], [9.0, 9.0], [1.0, math.nan]), 1):
        divergence = Divergence(1000, progress := Progress(**json.loads(json.dumps(stored))))
        divergence.add([*map(result, losses)])
        begins.append(step != 4 and divergence.record_mean(step))
        stored = dataclasses.asdict(progress)
    divergence = Divergence(1000, Progress(**stored))
    divergence.add([result(17.5)])
    begins.append(divergence.record_mean(5))
    assert begins == [False, False, False, False, True]
    assert divergence.describe(0.1).startswith("the loss is 9.2 nats per token at step 5; it began at 6.0")


def test_lasting_divergence_ends_a_run() -> None:
    divergence = Divergence(1000, Progress())
    divergence.record(100, 6.0)
    for step in range(110, 100 + MOST_STEPS, 10):
        divergence.record(step, 9.0)
        assert divergence.reason_to_stop == ""
    divergence.record(100 + MOST_STEPS, 9.0)
    assert divergence.reason_to_stop == "the loss was far above its start for 1,000 steps"


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

    def high_for_a_while(divergence: Divergence, step: int, loss: float) -> bool:
        return record(divergence, step, 1e4 if 3 <= step <= 8 else loss)

    monkeypatch.setattr(Divergence, "record", high_for_a_while)
    assert train_small(1, data=(str(pairs_file),), steps=12) == 0
    assert "is far above that since step 2: --learning-rate 0.002 is too high" in capsys.readouterr().err
    assert saved_step() == 12
