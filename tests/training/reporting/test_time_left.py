"""The time left: an exact number of steps, or a bound where validation ends the run."""

import datetime

import pytest

from chatbot.training.checkpoints.progress import Progress
from chatbot.training.reporting.terminal import Speed, StepsLeft, clock, duration, steps_left, time_left
from chatbot.training.schedule import Calendar


@pytest.mark.parametrize(
    ("step", "without_best", "last", "patience", "expected"),
    [
        (100, 0, 1000, None, StepsLeft(900)),
        (1000, 0, 1000, None, StepsLeft(0)),
        (0, 0, None, 3, StepsLeft(1000, "at least")),  # LEAST_STEPS
        (2000, 0, None, 3, StepsLeft(300, "at least")),
        (2050, 2, None, 3, StepsLeft(50, "at least")),
        (2000, 3, None, 3, StepsLeft(100, "at least")),  # a larger --patience was given before
        (2000, 0, 5000, 3, StepsLeft(3000, "at most")),
        (4900, 0, 5000, 3, StepsLeft(100)),
        (6000, 0, 5000, 3, StepsLeft(0)),
    ],
)
def test_steps_left(step: int, without_best: int, last: int | None, patience: int | None, expected: StepsLeft) -> None:
    calendar = Calendar(10, 500, None if patience is None else 100, last)
    assert steps_left(Progress(step=step, without_best=without_best), calendar, patience) == expected


def test_speed_is_that_of_the_last_hour() -> None:
    seconds = 0.0
    speed = Speed(lambda: seconds)
    assert speed.seconds_per_step() is None
    for step in range(30_000):
        seconds += 60 if step == 0 else 1 if step < 10_000 else 0.5  # the first one is traced
        speed.advance()
        speed.remember()
        if step == 9_000:
            assert speed.seconds_per_step() == pytest.approx(1)
    assert speed.seconds_per_step() == pytest.approx(0.5)
    assert len(speed._times) < 400


def test_time_left_in_words() -> None:
    now = datetime.datetime(2026, 11, 20, 14, 0)  # a Friday
    assert time_left(StepsLeft(100), 3.0, None, now) == "5 min left, 14:05"
    assert time_left(StepsLeft(100, "at most"), 360.0, None, now) == "at most 10 h 0 min left, Sat 00:00"
    assert time_left(StepsLeft(100), None, None, now) == time_left(StepsLeft(0), 3.0, None, now) == ""
    for bound, shown in (("", ""), ("at most", "at most "), ("at least", "")):
        assert time_left(StepsLeft(100, bound), 3.0, 120.0, now) == f"{shown}2 min left, 14:02"
    assert time_left(StepsLeft(100, "at least"), 3.0, 600.0, now) == "at least 5 min left, 14:05"
    assert time_left(StepsLeft(100, "at least"), None, 120.0, now) == "at most 2 min left, 14:02"
    assert [duration(s) for s in (0.4, 59, 60, 3600, 86400 * 400)] == ["0 s", "59 s", "1 min", "1 h 0 min", "400 d 0 h"]
    assert [clock(days * 86400, now) for days in (0, 6, 7, 1e9)] == ["14:00", "Thu 14:00", "2026-11-27 14:00", "never"]
