"""The lines of a run: metrics, questions, and the time left, a bound where validation ends the run."""

import math
import re

import pytest

from chatbot.training.reporting.terminal import HEADER, metrics_line, question_line, steps_left, time_left
from chatbot.training.schedule import Calendar
from tests.training.reporting.fake_run import fake_run, record_of

pytestmark = pytest.mark.usefixtures("work_dir")


@pytest.mark.parametrize(
    ("step", "without_best", "last", "patience", "expected"),
    [
        (100, 0, 1000, None, (900, "")),
        (1000, 0, 1000, None, (0, "")),
        (0, 0, None, 3, (1000, "at least")),  # LEAST_STEPS
        (2000, 0, None, 3, (300, "at least")),
        (2050, 2, None, 3, (50, "at least")),
        (2000, 3, None, 3, (100, "at least")),  # a larger --patience was given before
        (2000, 0, 5000, 3, (3000, "at most")),
        (4900, 0, 5000, 3, (100, "")),
        (6000, 0, 5000, 3, (0, "")),
    ],
)
def test_steps_left(
    step: int, without_best: int, last: int | None, patience: int | None, expected: tuple[int, str]
) -> None:
    run = fake_run(last, decides=patience is not None, patience=patience or 1)
    run.calendar = Calendar(10, 500, None if patience is None else 100, last)
    run.progress.step, run.progress.without_best = step, without_best
    assert steps_left(run) == expected


def test_time_left_in_words() -> None:
    run = fake_run(100, decides=False)
    assert re.fullmatch(r"0:05:00 left, \d{4}-\d\d-\d\d \d\d:\d\d", time_left(run, 3.0))
    assert time_left(run, 3600.0).startswith("4 days, 4:00:00 left, ")
    assert time_left(run, 1e10) == time_left(fake_run(0, decides=False), 3.0) == ""
    run.seconds_left = 120.0
    assert time_left(run, 3.0).startswith("0:02:00 left, ")
    run = fake_run(None, patience=3)  # at least 1,000 steps
    assert time_left(run, 3.0).startswith("at least 0:50:00 left, ")
    run.seconds_left = 120.0
    assert time_left(run, 3.0).startswith("0:02:00 left, ")
    run = fake_run(2000, patience=3)
    run.seconds_left = 120.0
    assert time_left(run, 3.0).startswith("at most 0:02:00 left, ")


def test_metrics_are_means_in_aligned_columns() -> None:
    records = [record_of(10, 4.0), record_of(20, 5.0), {**record_of(123_456), "loss": math.nan}]
    assert HEADER == "   step     loss  tokens/s  wait     norm      rate"
    assert metrics_line(records, "0:00:05 left") == "123,456   4.5000    12,346    3%    1.500     0.002  0:00:05 left"
    assert metrics_line([record_of(1, math.nan)]) == "      1        -    12,346    3%    1.500     0.002"


def test_questions_and_replies_are_printable_lines() -> None:
    assert question_line("你好", "你\n好") == "  你好 -> 你↵好"
    assert question_line("你好", "a\x1b[2J") == "  你好 -> a?[2J"
