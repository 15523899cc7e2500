"""The learning rate of each step, which steps are logged, validated and saved, and which step is the last."""

import dataclasses
from math import cos, pi, sqrt
from types import SimpleNamespace
from typing import Any

import pytest

from chatbot.config.learning import LearningSettings
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import compose
from chatbot.training.run import Run
from chatbot.training.schedule import FIRST_LOG_INTERVAL, Calendar, make_calendar, make_schedule, next_log_interval


@pytest.mark.parametrize(
    ("changes", "pairs", "steps_per_epoch", "highest", "warm_up"),
    [
        ({}, 256, 300, 0.002, 0),
        ({"warm_up": 40}, 256, 300, 0.002, 40),
        ({"scale_learning_rate": "linear"}, 256, 80, 0.008, 80),  # one epoch
        ({"scale_learning_rate": "linear"}, 256, 10**6, 0.008, 100),
        ({"scale_learning_rate": "linear", "warm_up": 0}, 256, 300, 0.008, 0),
        ({"scale_learning_rate": "sqrt", "warm_up": 7}, 256, 300, 0.004, 7),
        ({"scale_learning_rate": "sqrt"}, 64, 30, 0.002, 30),  # --learning-rate is defined for 64 pairs
        ({"scale_learning_rate": "sqrt", "steps": 100}, 64, 300, 0.002, 30),  # 30% of the run
        ({"scale_learning_rate": "sqrt", "epochs": 1, "schedule": "cosine"}, 64, 300, 0.002, 90),
        ({"schedule": "one-cycle", "steps": 10}, 64, 500, 0.002, 3),  # 30% of the run
        ({"schedule": "one-cycle", "steps": 10, "warm_up": 5}, 64, 500, 0.002, 5),
    ],
)
def test_highest_rate_and_warm_up_follow_the_settings(
    changes: dict[str, Any], pairs: int, steps_per_epoch: int, highest: float, warm_up: int
) -> None:
    schedule = make_schedule(LearningSettings(learning_rate=0.002, **changes), pairs, steps_per_epoch, 64)
    assert (schedule.highest, schedule.warm_up) == (pytest.approx(highest), warm_up)


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
    schedule = make_schedule(settings, 64, LENGTH // 2, 64)
    rising = [RATE * (step + 1) / WARM_UP for step in range(WARM_UP)]
    if kind == "one-cycle":
        rising = [RATE / 25 + RATE * 24 / 25 * (1 - cos(pi * step / 3)) / 2 for step in range(WARM_UP)]
    expected = [*rising, *map(SLOW[kind], range(WARM_UP, LENGTH))]
    assert [schedule.rate(step) for step in range(LENGTH)] == pytest.approx(expected)
    # From the last step on, the rate stays, or falls on.
    last, late = schedule.rate(LENGTH), schedule.rate(20 * LENGTH)
    assert late == (last if kind != "inverse-square-root" else pytest.approx(SLOW[kind](20 * LENGTH)))
    assert last == pytest.approx(SLOW[kind](LENGTH))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "cosine", "steps": 9, "warm_up": 9}, "--warm-up 9: the run has only 9 steps"),
        ({"schedule": "one-cycle", "epochs": 1, "warm_up": 500}, "--warm-up 500: the run has only 500 steps"),
    ],
)
def test_impossible_schedules_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_schedule(LearningSettings(**changes), 64, 500, 64)


@pytest.mark.parametrize(
    ("validate_every", "last_step", "due"),
    [
        (7, 23, {1: "l", 2: "", 5: "l", 7: "lvs", 8: "ls", 10: "l", 14: "lvs", 16: "ls", 23: "lvs"}),
        (None, 15, {1: "l", 7: "", 8: "ls", 15: "ls"}),
        (7, None, {7 * 10**6: "lvs", 8 * 10**6: "ls"}),
    ],
)
def test_intervals_are_independent_and_last_step_does_everything(
    validate_every: int | None, last_step: int | None, due: dict[int, str]
) -> None:
    """Due are l: a log, v: a validation, s: a save."""
    calendar = Calendar(log_every=5, save_every=8, validate_every=validate_every, last_step=last_step)
    for step, expected in due.items():
        assert calendar.due(step) == tuple(what in expected for what in "lvs"), step


@pytest.mark.parametrize(
    ("flags", "steps_per_epoch", "expected"),
    [({"steps": 5}, 10, 5), ({"epochs": 3}, 10, 30), ({}, 10, 1000), ({}, 1000, 10_000)],
)
def test_last_step_of_flags_and_defaults(flags: dict, steps_per_epoch: int, expected: int) -> None:
    settings = compose(Settings, log_every=3, save_every=4, **flags)
    for decides, last_step in ((False, expected), (True, expected if flags else None)):
        calendar = make_calendar(settings, steps_per_epoch, 64, 500, decides)
        assert (calendar.log_every, calendar.save_every, calendar.last_step) == (3, 4, last_step)


@pytest.mark.parametrize(
    ("steps_per_epoch", "validation_pairs", "given", "expected"),
    [
        (300, 500, None, 300),
        (10**6, 500, None, 2000),
        (5, 4, None, 100),
        (5, 6000, None, 313),
        (10**6, 60_000, None, 3125),
        (300, 500, 7, 7),
        (300, 0, 7, None),
    ],
)
def test_interval_of_validations_follows_both_sets(
    steps_per_epoch: int, validation_pairs: int, given: int | None, expected: int | None
) -> None:
    """An epoch, within bounds; scoring 6,000 pairs takes as long as 31 steps of 64 pairs, a tenth of 313."""
    settings = compose(Settings, validate_every=given)
    calendar = make_calendar(settings, steps_per_epoch, 64, validation_pairs, validation_decides=True)
    assert calendar.validate_every == expected


@pytest.mark.parametrize(
    ("step", "chief", "minutes", "saves"),
    [
        (10, True, 2.0, True),
        (10, True, 1.5, False),
        (10, False, 0.0, True),
        (9, True, 2.5, False),
        (50, True, 0.0, True),
    ],
)
def test_clock_of_the_chief_decides_at_logged_steps(step: int, chief: bool, minutes: float, saves: bool) -> None:
    """--save-minutes 2, --log-every 10, --save-every 50. minutes: since the last save, on this machine."""
    run, asked = clocked_run("10 1" if not chief else None, minutes, log_every=10, save_every=50, save_minutes=2)
    assert Run.due(run, step, 1000.0) == (step % 10 == 0, False, saves)
    assert len(asked) == (step == 10)  # all machines exchange at the same steps
    assert run.calendar.log_every == 10


def clocked_run(news: str | None, minutes: float, **settings: Any) -> tuple[Any, list[str]]:
    """A run that follows the clock, and the texts that it sends to all machines.

    news: What the chief sends, on another machine. minutes: since the last save, on this machine.
    """
    asked: list[str] = []

    def broadcast_text(text: str) -> str:
        asked.append(text)
        return text if news is None else news

    composed = compose(Settings, **settings)
    run = SimpleNamespace(
        calendar=dataclasses.replace(make_calendar(composed, 10**6, 64, 0, False), last_step=None),
        settings=composed,
        team=SimpleNamespace(broadcast_text=broadcast_text),
        checkpoints=SimpleNamespace(minutes_since_save=lambda: minutes),
    )
    return run, asked


@pytest.mark.parametrize(
    ("settings", "minutes", "saves"),
    [
        ({}, 4.9, False),
        ({}, 5.0, True),
        ({"save_every": 7}, 100.0, False),
        ({"save_every": 8}, 0.0, True),
        ({"save_minutes": 9}, 8.0, False),
        ({"save_minutes": 9}, 9.0, True),
    ],
)
def test_checkpoints_follow_the_clock_unless_steps_are_given(
    settings: dict[str, Any], minutes: float, saves: bool
) -> None:
    run, _ = clocked_run(None, minutes, **settings)
    assert Run.due(run, 8, None) == (True, False, saves)
    assert run.calendar.log_every == 8


@pytest.mark.parametrize(("seconds", "expected"), [(0.01, 64), (0.9, 2), (4.0, 1), (0.0001, 8192)])
def test_logs_approach_one_per_second(seconds: float, expected: int) -> None:
    """Each interval is a power of two, and stays when the last logs took half a second to two seconds."""
    run, asked = clocked_run(None, 0.0)
    logged = [step for step in range(1, 40_000) if Run.due(run, step, None if step < 8 else seconds).log]
    assert logged[:2] == [1, FIRST_LOG_INTERVAL]
    assert logged[-1] - logged[-2] == run.calendar.log_every == expected
    assert [text for text in asked if text] == [f"{2**i} 0" for i in powers(expected)]
    assert next_log_interval(expected, seconds) == expected


def powers(last: int) -> range:
    """The exponents of the intervals from the first one to the last one."""
    first, end = FIRST_LOG_INTERVAL.bit_length() - 1, last.bit_length() - 1
    return range(first + 1, end + 1) if end > first else range(first - 1, end - 1, -1)


def test_other_machines_take_the_interval_and_the_saves_of_the_chief() -> None:
    """Whose clock differs. At other steps, none asks."""
    run, asked = clocked_run("32 1", minutes=0.0)
    assert Run.due(run, 7, 9.0) == (False, False, False)
    assert not asked
    assert Run.due(run, 8, 9.0) == (True, False, True)
    assert run.calendar.log_every == 32
    assert [Run.due(run, step, 9.0).log for step in (16, 24, 32)] == [False, False, True]
