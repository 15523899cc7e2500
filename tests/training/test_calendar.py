"""The calendar: logging, validation and saving that are due at a step, and the last step."""

from types import SimpleNamespace
from typing import Any

import pytest

from chatbot.config.training import Settings
from chatbot.flags import compose
from chatbot.training.calendar import Calendar, Due, calendar_of, last_step, steps_between
from chatbot.training.run import Run

NOTHING = Due(log=False, validate=False, save=False)
LOG = Due(log=True, validate=False, save=False)
SAVE = Due(log=True, validate=False, save=True)
ALL = Due(log=True, validate=True, save=True)


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
    assert last_step(settings, steps_per_epoch, validation_decides=False) == expected
    assert last_step(settings, steps_per_epoch, validation_decides=True) == (expected if flags else None)


@pytest.mark.parametrize(
    ("steps_per_epoch", "validation_pairs", "expected"),
    [(300, 500, 300), (10**6, 500, 2000), (5, 4, 100), (5, 6000, 313), (10**6, 60_000, 3125)],
)
def test_interval_of_validations_follows_both_sets(steps_per_epoch: int, validation_pairs: int, expected: int) -> None:
    """An epoch, within bounds; scoring 6,000 pairs takes as long as 31 steps of 64 pairs, a tenth of 313."""
    assert steps_between(steps_per_epoch, 64, validation_pairs) == expected


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
