"""The calendar: logging, validation and saving that are due at a step, and the last step."""

import pytest

from chatbot.config.training import Settings
from chatbot.flags import compose
from chatbot.training.calendar import Calendar, Due, calendar_of, last_step

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
        ({"validation": "a.tsv"}, 10, None),
        ({"validation": "a.tsv", "steps": 7}, 10, 7),
    ],
)
def test_last_step_of_flags_and_defaults(flags: dict, steps_per_epoch: int, expected: int | None) -> None:
    assert last_step(compose(Settings, **flags), steps_per_epoch) == expected


def test_validation_is_due_each_epoch_or_more_often() -> None:
    assert calendar_of(Settings(), 300, validates=True).validate_every == 300
    assert calendar_of(Settings(), 10**6, validates=True).validate_every == 2000
    assert calendar_of(compose(Settings, validate_every=7), 300, validates=True).validate_every == 7
    assert calendar_of(Settings(), 300, validates=False).validate_every is None
