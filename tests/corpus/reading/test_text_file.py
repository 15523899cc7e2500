"""The first lines of a text, by which its format is told."""

from pathlib import Path

import pytest

from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.text_file import FIRST_LINES, open_text_files
from chatbot.corpus.reading.unpacking import SAMPLE
from tests.corpus.reading.sample_files import written


@pytest.mark.parametrize(
    ("content", "first_lines"),
    [
        ("a\nb", ["a\n", "b\n"]),
        ("a\nb\n", ["a\n", "b\n"]),
        ("a\n\n", ["a\n", "\n"]),
        ("a", ["a\n"]),
        ("a\n" * FIRST_LINES + "b", ["a\n"] * FIRST_LINES),
        # The sample ends inside a line, which counts only if there is no other.
        ("a\n" + "b" * SAMPLE, ["a\n"]),
        ("b" * (SAMPLE + 1), ["b" * SAMPLE + "\n"]),
    ],
    ids=["no line end", "a line end", "a blank line", "a single line", "many lines", "a long line", "only a long line"],
)
def test_first_lines_are_complete(tmp_path: Path, content: str, first_lines: list[str]) -> None:
    (text,) = open_text_files(written(tmp_path, "a", content), "a", Report())
    assert text.first_lines == first_lines
