"""The update rules against Keras's optimizers; updates that are not finite; averages; the loss scale of float16."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from chatbot.attempts.trained import weights_of
from chatbot.config.learning import LearningSettings
from chatbot.training import optimizer
from chatbot.training.checkpoints.progress import Progress
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.optimizer import (
    MOMENTUM,
    LossScale,
    apply_update,
    average_and_clip,
    is_overflow,
    make_slots,
    update_average,
    update_scalars,
)
from chatbot.training.replica import Replica, groups_of
from tests.training.checkpoints.step_checkpoints import model_of, values_of

RATE = 0.1
OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=MOMENTUM),
    "sgd": keras.optimizers.SGD,
}
START = np.array([1.0, -2.0])
GRADIENTS = np.array([[0.5, -1.0], [2.0, 0.1], [-0.3, 0.7], [1.0, 1.0]])


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_updates_equal_those_of_keras(rule: str) -> None:
    settings, optimizer = LearningSettings(optimizer=rule), OPTIMIZERS[rule](RATE)
    weight, expected = tf.Variable(START, dtype=tf.float32), keras.Variable(START, dtype="float32")
    slots = make_slots(rule, weight)
    for number, gradient in enumerate(tf.constant(GRADIENTS, tf.float32), 1):
        scalars = update_scalars(tf.constant(RATE), tf.constant(number), tf.constant(True))
        apply_update(settings, weight, slots, gradient, scalars)
        optimizer.apply([gradient], [expected])
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=1e-5)


def test_no_tokens_leave_gradients_of_zero() -> None:
    """Such as those of an independent replica without a pair."""
    gradients, norm, finite, _ = average_and_clip([tf.zeros(2)], tf.constant(0.0), 5.0)
    assert (float(norm), gradients[0].numpy().tolist(), bool(finite)) == (0.0, [0.0, 0.0], True)


@pytest.mark.parametrize(("where", "bad"), [("gradient", 3e38), ("gradient", float("inf")), ("tokens", float("nan"))])
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_update_that_is_not_finite_changes_nothing(rule: str, where: str, bad: float) -> None:
    """The square of 3e38 overflows. The first update is skipped as well."""
    settings = LearningSettings(optimizer=rule, weight_decay=0.3)
    weight, average = tf.Variable(START, dtype=tf.float32), tf.Variable([5.0, 6.0])
    slots = make_slots(rule, weight)
    updates = 0
    for value in (bad, 0.5, bad, 0.25):
        skipped = value is bad
        sums = [tf.constant([1.0, value if where == "gradient" else 0.5])]
        tokens = tf.constant(4.0 if where == "gradient" or not skipped else float("nan"))
        gradients, _, finite, _ = average_and_clip(sums, tokens, 5.0)
        assert bool(finite) == (not skipped)
        updates += int(finite)
        before = [variable.numpy() for variable in (weight, average, *slots)]
        scalars = update_scalars(tf.constant(RATE), tf.constant(updates), finite)
        apply_update(settings, weight, slots, gradients[0], scalars, decayed=True)
        update_average(average, weight, 0.9, tf.constant(updates), scalars.applied)
        after = [variable.numpy() for variable in (weight, average, *slots)]
        assert [bool((a == b).all()) for a, b in zip(before, after, strict=True)] == [skipped] * len(after)
        assert all(np.isfinite(value).all() for value in after)


PLAIN, MOVING = LearningSettings(), LearningSettings(average=0.9)


def saved(learning: LearningSettings, step: int) -> None:
    """Save a checkpoint whose weights have the value of its step; if they are averages, the trained are 10 more."""
    model = model_of(step)
    replica = Replica(model, learning, groups_of(model, learning, 0))
    for weight in replica.weights if learning.average else []:
        weight.assign(weight + 10)
    checkpoints = Checkpoints(Path(), model)
    checkpoints.save(Progress(step=step), replica.gather_state())
    checkpoints.finish()


@pytest.mark.parametrize(
    ("before", "now", "averaged", "trained"),
    [(MOVING, MOVING, 3, 13), (PLAIN, MOVING, 3, 3), (MOVING, PLAIN, 13, 13)],
)
def test_run_begins_or_ceases_to_average(
    work_dir: Path, before: LearningSettings, now: LearningSettings, averaged: float, trained: float
) -> None:
    saved(before, step=3)
    model = model_of(0)
    replica = Replica(model, now, groups_of(model, now, 1 << 20))
    _, state = Checkpoints(Path(), model).restore(replica.gather_state())
    replica.scatter_state(state)
    assert values_of(replica.weights) == {trained}
    replica.gather_state()
    assert values_of(weights_of(model)) == {averaged}


DOUBLED_AFTER, SMALLEST_SCALE, LARGEST_SCALE = 2, 2.0**-5, 2.0**4
NAN = float("nan")


class Outcome(NamedTuple):
    """What became of a step."""

    finite: bool  # the update was applied
    overflow: bool  # it was skipped, and the scale halved
    scale: float  # afterwards


class Course:
    """The course of a loss scale in plain Python."""

    def __init__(self) -> None:
        self.scale, self.steps = 1.0, 0

    def finite(self) -> Outcome:
        """After a step whose gradients are finite."""
        self.steps += 1
        if self.steps == DOUBLED_AFTER:
            self.scale, self.steps = min(2 * self.scale, LARGEST_SCALE), 0
        return Outcome(True, False, self.scale)

    def skipped(self, loss_finite: bool, used: float) -> Outcome:
        """After a step that was not finite. used: the scale of its gradients."""
        overflow = loss_finite and used > SMALLEST_SCALE
        self.scale, self.steps = min(used / 2, self.scale) if overflow else self.scale, 0
        return Outcome(False, overflow, self.scale)


@pytest.fixture(scope="module", autouse=True)
def _quick_course() -> Iterator[None]:
    """A scale that is doubled after few steps, within few powers of two."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DOUBLED_AFTER", "SMALLEST_SCALE", "LARGEST_SCALE"):
            patch.setattr(optimizer, name, globals()[name])
        yield


@given(st.lists(st.sampled_from(["finite", "overflow", "loss"]), max_size=30), st.integers(0, 30))
def test_scale_follows_a_plain_computation(events: list[str], resumed: int) -> None:
    """Also at both borders, and from a checkpoint."""
    scale, course = LossScale(), Course()
    assert scale.gather_state().tolist() == [0, 0]  # as the rest of the state of a new run
    for i, event in enumerate(events):
        if i == resumed:
            state, scale = scale.gather_state(), LossScale()
            scale.scatter_state(state)
        used, finite, tokens = (
            scale.read(),
            tf.constant(event == "finite"),
            tf.constant(NAN if event == "loss" else 9.0),
        )
        overflow = is_overflow(used, finite, tokens)
        scale.update(used, finite, overflow)
        expected = course.finite() if event == "finite" else course.skipped(event == "overflow", course.scale)
        assert Outcome(event == "finite", bool(overflow), float(scale.read())) == expected


def test_overflows_of_one_scale_halve_it_once() -> None:
    """As those of asynchronous workers, whose scale may have been doubled meanwhile."""
    scale, yes, no = LossScale(), tf.constant(True), tf.constant(False)
    for _ in range(3):
        scale.update(tf.constant(1.0), no, yes)
    assert float(scale.read()) == 0.5
    for _ in range(2 * DOUBLED_AFTER):
        scale.update(scale.read(), yes, no)
    scale.update(tf.constant(1.0), no, yes)
    assert float(scale.read()) == 0.5
