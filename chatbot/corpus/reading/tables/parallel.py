"""Parallel files: line i of the second answers line i of the first."""

import contextlib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from chatbot.corpus.reading.display import counted, one_line
from chatbot.corpus.reading.files.lines import lines
from chatbot.corpus.reading.files.text_file import TextFile, open_text_files
from chatbot.corpus.reading.pair import NEW, Pair
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError


def read_parallel(paths: tuple[Path, ...], name: str, report: Report, encoding: str | None = None) -> Iterator[Pair]:
    """Yield line i of the first file with line i of the second. Raises UserError when one has more lines."""
    with contextlib.ExitStack() as stack:
        sides, opened = [], []
        for path in paths:
            opening = open_text_files(path, one_line(str(path)), report, encoding=encoding)
            side = stack.enter_context(contextlib.closing(opening))
            text = next(side)
            sides.append(side)
            opened.append(text)
            if text.encoding not in report.encodings:
                report.encodings.append(text.encoding)
        yield from _pairs(opened[0], opened[1], report)
        for side, text in zip(sides, opened, strict=True):
            if next(side, None) is not None:
                raise UserError(f"{text.place}: the archive contains more than one file; unpack it and give one")


def _pairs(questions: TextFile, answers: TextFile, report: Report) -> Iterator[Pair]:
    asked = answered = 0
    ended = (0, None)
    for (number, question), (other, answer) in zip_longest(
        lines(questions, report), lines(answers, report), fillvalue=ended
    ):
        asked, answered = max(asked, number), max(answered, other)
        if question is None or answer is None:
            continue  # counted by `lines`, or the end of the shorter file
        if question or answer:
            yield question, answer, NEW
    if asked != answered:
        raise UserError(
            f"{questions.place} has {counted(asked, 'line')} and {answers.place} has {answered:,}; "
            "line i of the second answers line i of the first, so the numbers must be equal"
        )
