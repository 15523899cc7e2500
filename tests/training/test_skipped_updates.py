"""Steps whose loss or gradient is not finite update nothing, in every way of training."""

import json
from collections.abc import Callable, Container
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches, GlobalBatch
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training import alarms, share
from chatbot.training.alarms import MOST_RETURNS
from chatbot.training.data import prepare
from chatbot.training.devices.towers import Tower, spread
from chatbot.training.loop import train
from chatbot.training.run import Run
from chatbot.training.selftest import CASES, SETTINGS, VOCABULARY, random_pairs
from chatbot.training.update import open_update
from tests.training.attempts import metrics, saved_step, weights
from tests.training.small_run import open_with, small_settings, train_small
from tests.training.untraced_update import UntracedUpdate

# The weight of a pair whose gradient's norm overflows.
HUGE = np.float32(1e37)
UPDATES: dict[str, dict[str, Any]] = {
    "parameter_server": {},
    "variables on the CPU, momentum": {"local_parameter_device": "cpu", "optimizer": "momentum"},
    "accumulated, SGD": {"accumulate": 2, "optimizer": "sgd"},
    "model-parallel": {"model_parallel": True},
    "replicated, averaged": {"variable_update": "replicated", "average": 0.9, "weight_decay": 0.1},
    "hierarchical": {"all_reduce": "hierarchical"},
}


def values_of(model: Seq2Seq) -> list[np.ndarray]:
    """The weights of a model."""
    return [variable.numpy() for variable in model.trainable_variables]


class Opened:
    """A training step of several towers, batches, and one in which a pair of the second tower overflows."""

    def __init__(self, cpus: list[Tower], **options: Any) -> None:
        settings = replace(CASES["Adam with clipping"], batch_size=12, **options)
        towers = spread(cpus[:4]) if settings.parallel.model_parallel else cpus[:2]
        precision = "float32" if settings.learning.precision == "auto" else settings.learning.precision
        self.model = built_model(settings.model, VOCABULARY, settings.learning.seed, precision)
        self.update = open_update(self.model, settings, towers)
        self._state = self.update.gather_state()
        self.start = values_of(self.model)
        pairs = random_pairs(67, 3)
        self.batches = list(islice(Batches([pairs], 12, settings.learning.seed).from_step(0, len(towers)), 4))
        bad = self.batches.pop()
        rows = np.zeros(bad.shares[1].weights.shape, bool)
        rows[-1] = bad.shares[1].weights[-1] > 0
        poisoned = bad.shares[1]._replace(weights=np.where(rows, HUGE, bad.shares[1].weights))
        self.bad = bad._replace(shares=(bad.shares[0], poisoned))

    def train(self, batches: list[GlobalBatch]) -> tuple[list[bool], list[np.ndarray]]:
        """Train the untrained model; return which updates were applied, and the state and all weights."""
        for variable, value in zip(self.model.trainable_variables, self.start, strict=True):
            variable.assign(value)
        self.update.scatter_state(self._state)
        for number, batch in enumerate(batches):
            self.update(self.update.prepare(batch, number), SETTINGS.learning.learning_rate)
        state = tf.nest.flatten(self.update.gather_state())
        own = [weight.numpy() for replica in self.update.replicas for weight in replica.weights]
        return [result.finite for result in self.update.finished_steps()], [*state, *own]


@pytest.mark.parametrize("name", UPDATES)
def test_skipped_update_changes_nothing_on_any_replica(cpus: list[Tower], name: str) -> None:
    """Also as the first one. The run equals one without the batch that overflows."""
    opened = Opened(cpus, **UPDATES[name])
    first, second, third = opened.batches
    applied, actual = opened.train([opened.bad, first, second, opened.bad, third])
    assert applied == [False, True, True, False, True]
    applied, expected = opened.train(opened.batches)
    assert applied == [True] * 3
    assert len(actual) == len(expected) > 10
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()


def test_float16_lowers_its_scale_and_trains_on(cpus: list[Tower]) -> None:
    """Two towers train what float32 trains without the batches that overflow."""
    opened, exact = (Opened(cpus, precision=name, optimizer="sgd") for name in ("float16", "float32"))
    first, second, third = opened.batches
    applied, state = opened.train([opened.bad, first, second, opened.bad, third])
    exact.train(opened.batches)
    assert applied == [False, True, True, False, True]
    ((exponent, finite_steps),) = opened.update.gather_state().loss_scale
    assert (exponent, finite_steps) == (-2, 1)
    assert all(np.isfinite(value).all() for value in state)
    for actual, expected, start in zip(*map(values_of, (opened.model, exact.model)), exact.start, strict=True):
        assert np.linalg.norm(actual - expected) < 0.01 * np.linalg.norm(expected - start) + 1e-6


def test_staged_gradient_that_is_not_finite_is_not_applied(cpus: list[Tower]) -> None:
    """It is applied one step late. Until then, a checkpoint has finite numbers in its place."""
    opened = Opened(cpus, staged_variables=True)
    first, second, third = opened.batches
    for batches, expected in (([first, opened.bad], 2), ([first, opened.bad, second, third], 4)):
        applied, state = opened.train(batches)
        assert applied == [True, True, False, True][:expected]
        assert all(np.isfinite(value).all() for value in state)


def test_independent_tower_skips_its_own_update(cpus: list[Tower]) -> None:
    opened = Opened(cpus, variable_update="independent")
    first, second, _ = opened.batches
    applied, state = opened.train([first, opened.bad, second])
    assert applied == [True, False, True]
    assert all(np.isfinite(value).all() for value in state)
    assert [int(replica.updates) for replica in opened.update.replicas] == [3, 2]


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The numbers of steps, counted from 0, in which the weights of the second tower's pairs are not numbers."""
    numbers: set[int] = set()
    plain: Callable[..., Any] = share.share_of

    def share_of(batch: Any, model: Any, seed: Any, *step: Any) -> Any:
        _, number, tower, _ = seed
        if number in numbers and tower == 1:
            batch = batch._replace(weights=batch.weights * np.float32("nan"))
        return plain(batch, model, seed, *step)

    monkeypatch.setattr(share, "share_of", share_of)
    return numbers


RUN: dict[str, Any] = {"steps": 12, "save_every": 4}


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go back after two skipped updates in a row."""
    monkeypatch.setattr(alarms, "PATIENCE", 2)


@pytest.mark.parametrize("log_every", [1, 3])
def test_single_steps_are_skipped_and_counted(
    pairs_file: Path, poisoned: set[int], capsys: pytest.CaptureFixture[str], log_every: int
) -> None:
    poisoned |= {0, 2, 7}
    assert train_small(data=(str(pairs_file),), **RUN, log_every=log_every) == 0
    err = capsys.readouterr().err
    assert err.count("Warning: the loss or the gradient was not finite at step 1; the update was skipped") == 1
    assert "back to" not in err
    lines = metrics()
    assert [line["skipped_updates"] for line in lines] == [
        sum(number < line["step"] for number in poisoned) for line in lines
    ]
    if log_every == 1:
        assert [line["step"] - 1 for line in lines if line["loss"] is None] == sorted(poisoned)
    assert json.loads(Path("checkpoints/default/last").read_text())["skipped_updates"] == 3
    assert all(np.isfinite(value).all() for value in weights())


def test_run_goes_back_to_its_checkpoint_with_half_the_rate(
    pairs_file: Path, poisoned: set[int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned |= {5, 6}
    go_back = Run.go_back

    def healed(run: Run) -> None:
        go_back(run)
        poisoned.clear()

    monkeypatch.setattr(Run, "go_back", healed)
    assert train_small(data=(str(pairs_file),), **RUN, attempt="back") == 0
    err = capsys.readouterr().err
    assert (
        "Warning: the loss or the gradient was not finite at step 7, 2 in a row: back to the checkpoint of step "
        "4 with half the learning rate, 0.001 (1 of at most 3 times)"
    ) in err
    lines = metrics("back")
    assert [line["step"] for line in lines] == [*range(1, 13)]
    assert [line["learning_rate"] for line in lines] == [0.002] * 4 + [0.001] * 8
    assert [line["skipped_updates"] for line in lines] == [0] * 4 + [2] * 8

    train_small(data=(str(pairs_file),), **{**RUN, "steps": 4}, attempt="twin")
    train_small(data=(str(pairs_file),), **RUN, attempt="twin", learning_rate=0.001)
    for a, b in zip(weights("back"), weights("twin"), strict=True):
        np.testing.assert_array_equal(a, b)
    kept = json.loads(Path("checkpoints/back/last").read_text())  # for a resumed run
    assert (kept["rate_halvings"], kept["skipped_updates"]) == (1, 2)


def test_run_ends_after_it_went_back_three_times(
    pairs_file: Path, poisoned: set[int], capsys: pytest.CaptureFixture[str]
) -> None:
    poisoned |= set(range(6, 100))
    kept = "the checkpoint of step 4 is kept: resume from it"
    message = f"not finite at step 8, 2 in a row, after the run had gone back 3 times; {kept}"
    with pytest.raises(UserError, match=message):
        train_small(data=(str(pairs_file),), **RUN)
    rates = [f"{0.002 / 2**n:.3g} ({n} of at most 3 times)" for n in range(1, MOST_RETURNS + 1)]
    err = capsys.readouterr().err
    assert [f"step 4 with half the learning rate, {rate}" in err for rate in rates] == [True] * 3
    assert saved_step() == 4


def test_run_without_a_checkpoint_ends(pairs_file: Path) -> None:
    with pytest.raises(UserError, match="at step 2, 2 in a row; no checkpoint was saved: start again with a lower"):
        train_untraced(range(1, 100))


class EndedError(BaseException):
    """In place of the end of a process."""


def train_untraced(not_finite: Container[int], overflows: Container[int] = (), **flags: Any) -> Run:
    """Train on one tower with steps whose loss is not a number, or that overflow float16; return the run."""

    def opened(model: Seq2Seq, settings: Settings) -> UntracedUpdate:
        return UntracedUpdate(model, settings, not_finite=not_finite, overflows=overflows)

    settings = small_settings(data=("pairs.tsv",), report_to="none", **{**RUN, **flags})
    run = open_with(opened, settings, prepare(settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chatbot.training.loop.conclude", lambda *_: None)
        train(run)
    return run


def test_run_goes_back_three_times_in_all_its_processes(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another --learning-rate is not halved."""
    go_back, returns = Run.go_back, []

    def ended_after_two(run: Run) -> None:
        go_back(run)
        returns.append(run.progress.step)
        if len(returns) == 2:
            raise EndedError

    monkeypatch.setattr(Run, "go_back", ended_after_two)
    with pytest.raises(EndedError):
        train_untraced(range(6, 100))
    with pytest.raises(UserError, match="2 in a row, after the run had gone back 3 times"):
        train_untraced(range(6, 100))
    assert returns == [4] * 3
    assert train_untraced((), steps=11).rate == 0.002 / 8
    assert train_untraced((), learning_rate=0.001).rate == 0.001


def test_updates_are_skipped_in_a_row_over_several_processes(
    pairs_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process ends after step 6, which is its last one."""
    monkeypatch.setattr(alarms, "PATIENCE", 3)
    run = train_untraced((5, 6), steps=6)
    assert (run.progress.step, run.progress.rate_halvings) == (6, 0)
    assert train_untraced((5, 6, 7), steps=7).progress.rate_halvings == 1
    assert "not finite at step 7, 3 in a row: back to the checkpoint of step 6" in capsys.readouterr().err


def test_overflows_of_float16_are_counted_and_do_not_return(
    pairs_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They lower the loss scale. Two losses that are not numbers do return, with overflows among them."""
    run = train_untraced((), overflows=range(2, 9))
    assert (run.progress.skipped_updates, run.progress.rate_halvings) == (7, 0)
    assert "not finite" not in capsys.readouterr().err
    with pytest.raises(UserError, match="at step 5, 2 in a row; no checkpoint was saved"):
        train_untraced((2, 5), overflows=(3, 4), attempt="both", log_every=6, save_every=6)


def test_step_before_finite_ones_is_named(pairs_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_untraced((4,), log_every=6)
    assert "was not finite at step 4; the update was skipped" in capsys.readouterr().err
