"""The learning rate: scaling with the batch size, warm-up, schedules and their description."""

import dataclasses
from math import cos, pi, sqrt
from typing import Any

import pytest

from chatbot.config.learning import LearningSettings
from chatbot.errors import UserError
from chatbot.training.schedule import Schedule, describe, schedule_of


@pytest.mark.parametrize(("rule", "highest"), [("none", 0.002), ("linear", 0.008), ("sqrt", 0.004)])
def test_learning_rate_scales_with_batch_size(rule: str, highest: float) -> None:
    settings = LearningSettings(learning_rate=0.002, scale_learning_rate=rule)
    assert schedule_of(settings, 256, 500).highest == pytest.approx(highest)


def test_learning_rate_is_defined_for_64_pairs() -> None:
    for rule in ("none", "linear", "sqrt"):
        assert (
            schedule_of(LearningSettings(scale_learning_rate=rule), 64, 500).highest == LearningSettings().learning_rate
        )


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, 0),
        ({"scale_learning_rate": "linear"}, 300),
        ({"scale_learning_rate": "sqrt", "warm_up": 7}, 7),
        ({"scale_learning_rate": "linear", "warm_up": 0}, 0),
        ({"warm_up": 40}, 40),
    ],
)
def test_warm_up_defaults_to_one_epoch_of_scaled_rates(changes: dict[str, object], steps: int) -> None:
    assert schedule_of(LearningSettings(**changes), 256, 300).warm_up == steps  # type: ignore[arg-type]


def test_warm_up_is_limited_in_long_epochs() -> None:
    assert schedule_of(LearningSettings(scale_learning_rate="linear"), 256, 10**6).warm_up == 1000


def test_learning_rate_rises_linearly_and_stays() -> None:
    schedule = Schedule(0.8, warm_up=4)
    assert [schedule.rate(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert Schedule(0.8, warm_up=0).rate(0) == 0.8


def test_scaled_learning_rate_is_described() -> None:
    settings = LearningSettings(scale_learning_rate="linear")
    line = describe(settings, schedule_of(settings, 256, 300), 256)
    assert line == "Learning rate 0.008: 0.002 scaled by linear of 256/64 pairs in a batch, reached after 300 steps."
    plain = dataclasses.replace(settings, scale_learning_rate="none")
    assert describe(plain, schedule_of(plain, 256, 300), 256) == ""
    cosine = dataclasses.replace(plain, schedule="cosine", epochs=2, least_rate=1e-5)
    assert describe(cosine, schedule_of(cosine, 256, 300), 256) == "Learning rate 0.002; falls to 1e-05 at step 600."


RATE, WARM_UP, LENGTH, LEAST = 0.8, 4, 20, 0.1
SLOW = {
    "constant": lambda step: RATE,
    "inverse-square-root": lambda step: max(LEAST, RATE * sqrt(WARM_UP) / sqrt(step + 1)),
    "cosine": lambda step: LEAST + (RATE - LEAST) * (1 + cos(pi * (step - WARM_UP) / (LENGTH - WARM_UP))) / 2,
    "one-cycle": lambda step: LEAST + (RATE - LEAST) * (1 + cos(pi * (step - 3) / (LENGTH - 3))) / 2,
}


@pytest.mark.parametrize("kind", SLOW)
def test_schedules_equal_their_formulas(kind: str) -> None:
    least = 0.0 if kind == "constant" else LEAST
    settings = LearningSettings(learning_rate=RATE, warm_up=WARM_UP, schedule=kind, epochs=2, least_rate=least)
    schedule = schedule_of(settings, 64, LENGTH // 2)
    rising = [RATE * (step + 1) / WARM_UP for step in range(WARM_UP)]
    if kind == "one-cycle":
        rising = [RATE / 25 + RATE * 24 / 25 * (1 - cos(pi * step / 3)) / 2 for step in range(WARM_UP)]
    expected = [*rising, *map(SLOW[kind], range(WARM_UP, LENGTH))]
    assert [schedule.rate(step) for step in range(LENGTH)] == pytest.approx(expected)
    # From the last step on, the rate stays, or falls to the least.
    last = schedule.rate(LENGTH)
    assert schedule.rate(20 * LENGTH) == (last if kind != "inverse-square-root" else LEAST)
    assert last == pytest.approx(RATE if kind == "constant" else max(LEAST, SLOW[kind](LENGTH)))


def test_one_cycle_rises_in_30_percent_of_the_run() -> None:
    schedule = schedule_of(LearningSettings(learning_rate=RATE, schedule="one-cycle", steps=10), 64, 500)
    rates = [schedule.rate(step) for step in range(11)]
    assert (schedule.warm_up, max(rates), rates[2], rates[10]) == (3, RATE, RATE, 0.0)
    shortest = schedule_of(LearningSettings(schedule="one-cycle", steps=1), 64, 500)
    assert 0 < shortest.rate(0) < shortest.highest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "cosine"}, "--schedule cosine: it needs the length of the run; give --steps or --epochs"),
        ({"schedule": "one-cycle"}, "--schedule one-cycle: it needs the length of the run"),
        ({"schedule": "inverse-square-root"}, "--schedule inverse-square-root: .* give --warm-up"),
        ({"least_rate": 0.1}, "--least-rate: not used with --schedule constant; .* --schedule .* or cosine or"),
        ({"schedule": "cosine", "steps": 9, "least_rate": 0.5}, "--least-rate 0.5: above --learning-rate 0.002"),
        ({"schedule": "cosine", "steps": 9, "warm_up": 9}, "--warm-up 9: the run has 9 steps"),
    ],
)
def test_schedules_that_cannot_be_followed_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        schedule_of(LearningSettings(**changes), 64, 500)
