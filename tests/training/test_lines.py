"""Lines that a run shows."""

import math

from chatbot.corpus.reading.display import aligned
from chatbot.training.display import question_line
from chatbot.training.reporting.terminal import HEADER, metrics_line
from tests.training.reporting.fake_run import record_of


def test_metrics_are_means_in_aligned_columns() -> None:
    records = [record_of(10, 4.0), record_of(20, 5.0), {**record_of(123_456), "loss": math.nan}]
    assert HEADER == "   step     loss  tokens/s  wait     norm      rate"
    assert metrics_line(records, "0:00:05 left") == "123,456   4.5000    12,346    3%    1.500     0.002  0:00:05 left"
    assert metrics_line([record_of(1, math.nan)]) == "      1        -    12,346    3%    1.500     0.002"


def test_questions_and_replies_are_printable_lines() -> None:
    assert question_line("你好", "你\n好") == "  你好 -> 你↵好"
    assert question_line("你好", "a\x1b[2J") == "  你好 -> a?[2J"


def test_columns_of_a_table_are_aligned() -> None:
    rows = [("part", "shape", "ms", "sum"), ("a", "123456789", "5", "")]
    assert aligned(rows, [True, True, False, False], "  ") == ["  part  shape      ms  sum", "  a     123456789   5"]
