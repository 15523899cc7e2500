"""The update rules against Keras's optimizers; averages; the loss scale of float16."""

import math
from collections.abc import Iterator
from pathlib import Path

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
    make_slots,
    update_scalars,
)
from chatbot.training.replica import Replica, group_variables
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


PLAIN, MOVING = LearningSettings(), LearningSettings(average=0.9)


def saved(learning: LearningSettings, step: int) -> None:
    """Save a checkpoint whose weights have the value of its step; if they are averages, the trained are 10 more."""
    model = model_of(step)
    replica = Replica(model, learning, group_variables(model, learning, 0))
    for weight in replica.weights if learning.average else []:
        weight.assign(weight + 10)
    checkpoints = Checkpoints(Path(), model)
    checkpoints.save(Progress(step=step), replica.gather_state())
    checkpoints.finish()


@pytest.mark.parametrize(
    ("before", "now", "averaged", "trained"),
    [(MOVING, MOVING, 3, 13), (PLAIN, MOVING, 3, 3), (MOVING, PLAIN, 13, 13)],
)
def test_resumed_run_can_start_or_stop_averaging(
    work_dir: Path, before: LearningSettings, now: LearningSettings, averaged: float, trained: float
) -> None:
    saved(before, step=3)
    model = model_of(0)
    replica = Replica(model, now, group_variables(model, now, 1 << 20))
    _, state = Checkpoints(Path(), model).restore(replica.gather_state())
    replica.scatter_state(state)
    assert values_of(replica.weights) == {trained}
    replica.gather_state()
    assert values_of(weights_of(model)) == {averaged}


GROWTH_INTERVAL, MIN_LOSS_SCALE, MAX_LOSS_SCALE = 2, 2.0**-5, 2.0**4


class Course:
    """The course of a loss scale in plain Python."""

    def __init__(self) -> None:
        self.scale, self.steps = 1.0, 0

    def step(self, event: str) -> bool:
        """Follow a step; return whether its gradients overflowed."""
        overflow = event == "overflow" and self.scale > MIN_LOSS_SCALE
        self.scale /= 2 if overflow else 1
        self.steps = self.steps + 1 if event == "finite" else 0
        if self.steps == GROWTH_INTERVAL:
            self.scale, self.steps = min(2 * self.scale, MAX_LOSS_SCALE), 0
        return overflow


@pytest.fixture(scope="module", autouse=True)
def _quick_course() -> Iterator[None]:
    """A scale that is doubled after few steps, within few powers of two."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GROWTH_INTERVAL", "MIN_LOSS_SCALE", "MAX_LOSS_SCALE"):
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
        used = scale.read()
        sums = [tf.constant([math.inf if event == "overflow" else 1.0])]
        tokens = tf.constant(math.nan if event == "loss" else 9.0)
        _, _, finite, overflow = average_and_clip(sums, tokens, 5.0, used)
        scale.update(used, finite, overflow)
        assert bool(finite) == (event == "finite")
        assert bool(overflow) == course.step(event)
        assert float(scale.read()) == course.scale


def test_overflows_at_one_scale_halve_it_once() -> None:
    """As those of asynchronous workers, whose scale may have been doubled meanwhile."""
    scale, yes, no = LossScale(), tf.constant(True), tf.constant(False)
    for _ in range(3):
        scale.update(tf.constant(1.0), no, yes)
    assert float(scale.read()) == 0.5
    for _ in range(2 * GROWTH_INTERVAL):
        scale.update(scale.read(), yes, no)
    scale.update(tf.constant(1.0), no, yes)
    assert float(scale.read()) == 0.5
