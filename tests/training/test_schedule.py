"""The learning rate of each step, which steps are logged, validated and saved, and which step is the last."""

from math import cos, pi, sqrt
from types import SimpleNamespace
from typing import Any

import pytest

from chatbot.config.learning import LearningSettings
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import compose
from chatbot.training.run import Run
from chatbot.training.schedule import (
    Calendar,
    Due,
    Schedule,
    calendar_of,
    schedule_of,
)

NOTHING = Due(log=False, validate=False, save=False)
LOG = Due(log=True, validate=False, save=False)
SAVE = Due(log=True, validate=False, save=True)
ALL = Due(log=True, validate=True, save=True)


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


RATE, WARM_UP, LENGTH = 0.8, 4, 20
SLOW = {
    "constant": lambda step: RATE,
    "inverse-square-root": lambda step: RATE * sqrt(WARM_UP) / sqrt(step + 1),
    "cosine": lambda step: RATE * (1 + cos(pi * (step - WARM_UP) / (LENGTH - WARM_UP))) / 2,
    "one-cycle": lambda step: RATE * (1 + cos(pi * (step - 3) / (LENGTH - 3))) / 2,
}


@pytest.mark.parametrize("kind", SLOW)
def test_schedules_equal_their_formulas(kind: str) -> None:
    settings = LearningSettings(learning_rate=RATE, warm_up=WARM_UP, schedule=kind, epochs=2)
    schedule = schedule_of(settings, 64, LENGTH // 2)
    rising = [RATE * (step + 1) / WARM_UP for step in range(WARM_UP)]
    if kind == "one-cycle":
        rising = [RATE / 25 + RATE * 24 / 25 * (1 - cos(pi * step / 3)) / 2 for step in range(WARM_UP)]
    expected = [*rising, *map(SLOW[kind], range(WARM_UP, LENGTH))]
    assert [schedule.rate(step) for step in range(LENGTH)] == pytest.approx(expected)
    # From the last step on, the rate stays, or falls on.
    last = schedule.rate(LENGTH)
    assert schedule.rate(20 * LENGTH) == (
        last if kind != "inverse-square-root" else pytest.approx(SLOW[kind](20 * LENGTH))
    )
    assert last == pytest.approx(SLOW[kind](LENGTH))


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
        ({"schedule": "cosine", "steps": 9, "warm_up": 9}, "--warm-up 9: the run has 9 steps"),
    ],
)
def test_schedules_that_cannot_be_followed_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        schedule_of(LearningSettings(**changes), 64, 500)


@pytest.mark.parametrize(
    ("step", "due"),
    [(1, LOG), (2, NOTHING), (5, LOG), (7, ALL), (8, SAVE), (10, LOG), (14, ALL), (16, SAVE), (23, ALL)],
)
def test_intervals_are_independent_and_last_step_does_everything(step: int, due: Due) -> None:
    assert Calendar(log_every=5, save_every=8, validate_every=7, last_step=23).due(step) == due


def test_nothing_is_validated_without_validation_pairs() -> None:
    calendar = Calendar(log_every=5, save_every=8, validate_every=None, last_step=16)
    assert not any(calendar.due(step).validate for step in range(1, 17))
    assert calendar.due(16) == SAVE


def test_intervals_continue_without_last_step() -> None:
    assert Calendar(log_every=5, save_every=8, validate_every=7, last_step=None).due(7 * 10**6) == ALL


@pytest.mark.parametrize(
    ("flags", "steps_per_epoch", "expected"),
    [
        ({"steps": 5}, 10, 5),
        ({"epochs": 3}, 10, 30),
        ({}, 10, 1000),
        ({}, 1000, 10_000),
    ],
)
def test_last_step_of_flags_and_defaults(flags: dict, steps_per_epoch: int, expected: int) -> None:
    settings = compose(Settings, **flags)
    for decides, last_step in ((False, expected), (True, expected if flags else None)):
        assert calendar_of(settings, steps_per_epoch, 64, 500, decides).last_step == last_step


@pytest.mark.parametrize(
    ("steps_per_epoch", "validation_pairs", "expected"),
    [(300, 500, 300), (10**6, 500, 2000), (5, 4, 100), (5, 6000, 313), (10**6, 60_000, 3125)],
)
def test_interval_of_validations_follows_both_sets(steps_per_epoch: int, validation_pairs: int, expected: int) -> None:
    """An epoch, within bounds; scoring 6,000 pairs takes as long as 31 steps of 64 pairs, a tenth of 313."""
    calendar = calendar_of(Settings(), steps_per_epoch, 64, validation_pairs, validation_decides=True)
    assert calendar.validate_every == expected


def test_interval_of_validations_may_be_given() -> None:
    settings = compose(Settings, validate_every=7)
    assert calendar_of(settings, 300, 64, 500, validation_decides=True).validate_every == 7
    assert calendar_of(settings, 300, 64, 0, validation_decides=False).validate_every is None


def test_intervals_and_last_step_are_those_of_the_settings() -> None:
    settings = compose(Settings, log_every=3, save_every=4, validate_every=5, epochs=2)
    calendar = calendar_of(settings, 300, 64, 500, validation_decides=True)
    assert calendar == Calendar(log_every=3, save_every=4, validate_every=5, last_step=600)
    endless = compose(Settings, validate_every=5)
    assert calendar_of(endless, 300, 64, 500, validation_decides=True).last_step is None
    assert calendar_of(endless, 300, 64, 500, validation_decides=False).last_step == 3000


@pytest.mark.parametrize(
    ("step", "chief", "minutes", "saves"),
    [
        (10, True, 2.5, True),
        (10, True, 1.5, False),
        (10, False, 0.0, True),
        (9, True, 2.5, False),
        (50, True, 0.0, True),
    ],
)
def test_clock_of_the_chief_decides_at_logged_steps(step: int, chief: bool, minutes: float, saves: bool) -> None:
    """--save-minutes 2, --log-every 10, --save-every 50. minutes: since the last save, on this machine."""
    asked: list[str] = []

    def agree(reason: str) -> str:
        asked.append(reason)
        return reason if chief else "late"

    run: Any = SimpleNamespace(
        calendar=Calendar(log_every=10, save_every=50, validate_every=None, last_step=None),
        settings=compose(Settings, save_minutes=2),
        team=SimpleNamespace(chief=chief, agree=agree),
        checkpoints=SimpleNamespace(minutes_since_save=lambda: minutes),
    )
    assert Run.due(run, step) == (step % 10 == 0, False, saves)
    assert len(asked) == (step == 10)  # all machines exchange at the same steps
