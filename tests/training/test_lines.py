"""Lines fitted to the columns of a terminal."""

import math

import pytest

from chatbot.training.display import aligned, question_line, wrapped
from chatbot.training.reporting.terminal import bar_format, header, metrics_line
from tests.training.reporting.fake_run import record_of


def test_metrics_are_means_in_aligned_columns() -> None:
    records = [record_of(10, 4.0), record_of(20, 5.0), {**record_of(123_456), "loss": math.nan}]
    assert header(None, time_left=True) == "   step     loss  tokens/s  wait     norm      rate  time left, end"
    assert metrics_line(records, None, "5 s left") == "123,456   4.5000    12,346    3%    1.500     0.002  5 s left"
    assert (header(39, False), metrics_line(records, 39)) == (
        "   step     loss  tokens/s  wait",
        "123,456   4.5000    12,346    3%",
    )
    assert metrics_line([{"step": 1, "loss": None}], 20) == "      1        -"


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (79, "loss 4.5000  {bar}  1,234/5,000  7.2 steps/s  at most 12 min left, 14:05"),
        (60, "loss 4.5000  1,234/5,000  at most 12 min left, 14:05"),
        (39, "loss 4.5000  at most 12 min left, 14:05"),
        (30, "loss 4.5000  at most 12 min..."),
    ],
)
def test_bar_begins_with_the_loss(columns: int, shown: str) -> None:
    assert bar_format(columns, 4.5, 1234, 5000, "7.2 steps/s", "at most 12 min left, 14:05") == shown


def test_bar_before_the_first_loss_and_without_an_end() -> None:
    assert bar_format(79, None, 0, 5000, "", "compiling") == "{bar}  0/5,000  compiling"
    assert bar_format(79, None, 0, None, "", "compiling") == "step 0  compiling"


def test_questions_and_replies_are_cut_to_the_width() -> None:
    assert question_line("你好", "你\n好", None) == "  你好 -> 你↵好"
    assert question_line("你好" * 9, "好", 20) == "  你好你好... -> 好"
    assert question_line("好", "你好" * 9, 20) == "  好 -> 你好你好..."
    assert question_line("你好" * 9, "你好" * 9, 20) == "  你好... -> 你好..."
    assert question_line("你好", "a\x1b[2J", 80) == "  你好 -> a?[2J"


def test_long_texts_are_broken_between_words() -> None:
    assert wrapped("one two three", 8) == "one two\n  three"
    assert wrapped("one two three", None) == "one two three"
    assert wrapped("  one two three", 9) == "  one two\n    three"


def test_columns_of_a_wide_table_continue_on_further_lines() -> None:
    rows = [("part", "shape", "ms", "sum"), ("a", "123456789", "5", "")]
    assert aligned(rows, 2, None) == ["  part  shape      ms  sum", "  a     123456789   5"]
    assert aligned(rows, 2, 12) == ["  part", "    shape", "    ms  sum", "  a", "    12345...", "     5"]
    assert aligned(rows, 2, 20, indent="") == ["part  shape      ms", "  sum", "a     123456789   5"]
