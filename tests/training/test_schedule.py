"""The learning rate: scaling with the batch size, warm-up and its description."""

import dataclasses

import pytest

from chatbot.config.learning import LearningSettings
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
