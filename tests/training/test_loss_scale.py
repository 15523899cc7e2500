"""The loss scale of float16: its course over overflows, in every way of training, and in a resumed run."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.batches import Batches, split
from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.training import optimizer
from chatbot.training.devices.towers import Tower, spread
from chatbot.training.optimizer import LossScale, is_overflow
from chatbot.training.replica import TrainState, Values
from chatbot.training.selftest import NEVER_CLIPPED, SETTINGS, VOCABULARY, random_pairs
from chatbot.training.update import open_update
from tests.training.devices.test_out_of_memory import with_memory_for
from tests.training.scaled_gradients import Course, Outcome, scaled_gradients

DOUBLED_AFTER, SMALLEST_SCALE, LARGEST_SCALE = 2, 2.0**-5, 2.0**4
RATE = 2.0**-6
NAN = float("nan")
GRADIENT_FUNCTION = "chatbot.training.gradients.gradient_function"
# The factors of the pairs' weights in each step. The first scale for 2**9 is between 1 and 8, for 2**14 far below 1.
# No scale helps with 1e30, nor with a loss that is not a number.
FACTORS = [*[2.0**9] * 9, NAN, *[2.0**14] * 7, *[1e30] * 6, *[2.0**9] * 8, NAN, NAN]
UPDATES: dict[str, dict[str, Any]] = {
    "variables on the CPU, accumulated": {"local_parameter_device": "cpu", "accumulate": 2},
    "model-parallel": {"model_parallel": True},
    "replicated": {"variable_update": "replicated"},
    "staged": {"staged_variables": True},
    "independent": {"variable_update": "independent"},
    "out of memory": {},
}


@pytest.fixture(scope="module", autouse=True)
def _quick_course() -> Iterator[None]:
    """A scale that is doubled after few steps, within few powers of two."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DOUBLED_AFTER", "SMALLEST_SCALE", "LARGEST_SCALE"):
            patch.setattr(optimizer, name, globals()[name])
        yield


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the gradient function."""
    monkeypatch.setattr(GRADIENT_FUNCTION, scaled_gradients)


@given(st.lists(st.sampled_from(["finite", "overflow", "loss"]), max_size=30), st.integers(0, 30))
def test_scale_follows_a_plain_computation(events: list[str], resumed: int) -> None:
    """Also at both borders, and from a checkpoint."""
    scale, course = LossScale(), Course(DOUBLED_AFTER, SMALLEST_SCALE, LARGEST_SCALE)
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
        expected = course.finite() if event == "finite" else course.skipped(event == "overflow")
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


class Opened:
    """A training step of two towers with `scaled_gradients`, and its batches."""

    def __init__(self, cpus: list[Tower], **options: Any) -> None:
        self.settings = replace(
            SETTINGS, batch_size=12, optimizer="sgd", max_gradient_norm=NEVER_CLIPPED, precision="float16", **options
        )
        self._model = built_model(self.settings.model, VOCABULARY, 1, "float16")
        towers = spread(cpus[:4]) if self.settings.parallel.model_parallel else cpus[:2]
        self.update = open_update(self._model, self.settings, towers)
        self.pieces: dict[int, int] = {}  # of each share in a step
        self.batches = [
            batch._replace(shares=tuple(s._replace(weights=s.weights * np.float32(factor)) for s in batch.shares))
            for batch, factor in zip(Batches([random_pairs(67, 3)], 12, 1).from_step(0, 2), FACTORS, strict=False)
        ]

    def train(self, first: int, last: int | None = None) -> list[list[float]]:
        """Train from one step to another; return the scale of each replica after each step."""
        scales = []
        for number in range(len(self.batches))[first:last]:
            self.update(self.update.prepare(self.batches[number], number), RATE)
            self.pieces[number] = self.update._pieces(self.batches[number])
            replicas = self.update.replicas
            scales.append([float(replica.loss_scale.read()) for replica in replicas if replica.loss_scale])
        return scales

    def state(self) -> tuple[Values, TrainState]:
        """The content of a checkpoint: the weights, and the rest."""
        state = self.update.gather_state()
        return [variable.numpy() for variable in self._model.trainable_variables], state

    def restore(self, weights: Values, state: TrainState) -> None:
        """Continue from a checkpoint."""
        for variable, value in zip(self._model.trainable_variables, weights, strict=True):
            variable.assign(value)
        self.update.scatter_state(state)

    def course(self, towers: slice) -> list[Outcome | None]:
        """The outcome of each step for towers with a scale of their own; None for no update."""
        course, pending, outcomes = Course(DOUBLED_AFTER, SMALLEST_SCALE, LARGEST_SCALE), None, []
        for number, batch in enumerate(self.batches):
            pieces = self.pieces[number]
            now = [piece for share in batch.shares[towers] for piece in split(share, pieces)], course.scale
            due, pending = (pending, now) if self.settings.parallel.staged_variables else (now, None)
            outcomes.append(course.after(*due) if due else None)
        return outcomes


@pytest.mark.parametrize("name", UPDATES)
def test_every_update_follows_the_course(
    cpus: list[Tower], name: str, stub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every applied update lowers all weights by the rate; the others leave them as they are.

    Where memory runs out, the shares of the first step are divided like those of all others.
    """
    if name == "out of memory":
        monkeypatch.setattr(GRADIENT_FUNCTION, with_memory_for(3, scaled_gradients))
    opened = Opened(cpus, **UPDATES[name])
    start = [replica.weights[0].numpy() for replica in opened.update.replicas]
    scales = opened.train(0)
    groups = [slice(0, 1), slice(1, 2)] if name == "independent" else [slice(0, 2)] * len(start)
    courses = [opened.course(group) for group in groups]
    for i, (result, *outcomes) in enumerate(zip(opened.update.finished_steps(), *courses, strict=True)):
        of_step = [outcome for outcome in outcomes if outcome]
        assert scales[i] == [outcome.scale for outcome in of_step] or not of_step
        assert result.finite == all(outcome.finite for outcome in of_step)
        if not result.finite:
            assert result.overflow == all(outcome.finite or outcome.overflow for outcome in of_step)
    for replica, weight, course in zip(opened.update.replicas, start, courses, strict=True):
        applied = sum(outcome.finite for outcome in course if outcome)
        assert int(replica.updates) == applied < len(course)
        np.testing.assert_allclose(replica.weights[0], weight - RATE * applied, atol=1e-6)
    reached = {scale for of_step in scales for scale in of_step}
    assert min(reached) == SMALLEST_SCALE < 1 < max(reached)


@pytest.mark.parametrize("staged", [False, True])
def test_resumed_run_is_equal_to_the_bit(cpus: list[Tower], staged: bool, stub: None) -> None:
    """Also after an overflow or a loss that is not a number, which a staged run has not skipped yet."""
    opened = Opened(cpus, staged_variables=staged)
    kept = {}
    for number in range(len(FACTORS)):
        kept[number] = opened.state()
        assert all(np.isfinite(value).all() for value in tf.nest.flatten(kept[number]))
        opened.train(number, number + 1)
    results, last = opened.update.finished_steps(), opened.state()
    for number in (5, FACTORS.index(NAN) + 1, FACTORS.index(2.0**14) + 1, FACTORS.index(1e30) + 7):
        opened.restore(*kept[number])
        opened.train(number)
        again = opened.update.finished_steps()
        assert [result.finite for result in again] == [result.finite for result in results[number:]]
        for actual, expected in zip(*map(tf.nest.flatten, (opened.state(), last)), strict=True):
            np.testing.assert_array_equal(actual, expected)
