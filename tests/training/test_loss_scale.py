"""The loss scale of float16: its course over overflows equals a plain computation."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from chatbot.training import optimizer
from chatbot.training.optimizer import LossScale, is_overflow

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
