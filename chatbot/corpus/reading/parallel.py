"""Two files, the answer to a line of the one in the same line of the other."""

import contextlib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from chatbot.corpus.reading.lines import Pair, lines
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.shown import shown
from chatbot.corpus.reading.text import Text, texts
from chatbot.errors import UserError


def read_parallel(paths: tuple[Path, ...], name: str, report: Report) -> Iterator[Pair]:
    """Line i of the first file with line i of the second. Raises UserError when one has more lines."""
    with contextlib.ExitStack() as stack:
        sides, opened = [], []
        for path in paths:
            side = stack.enter_context(contextlib.closing(texts(path, shown(str(path)), report)))
            text = next(side)
            sides.append(side)
            opened.append(text)
            if text.encoding not in report.encodings:
                report.encodings.append(text.encoding)
        yield from _pairs(opened[0], opened[1], report)
        for side, text in zip(sides, opened, strict=True):
            if next(side, None) is not None:
                raise UserError(f"{text.place}: more than one file in this zip file; unpack it and name one")


def _pairs(questions: Text, answers: Text, report: Report) -> Iterator[Pair]:
    asked = answered = 0
    ended = (0, None)
    for (number, question), (other, answer) in zip_longest(
        lines(questions, report), lines(answers, report), fillvalue=ended
    ):
        asked, answered = max(asked, number), max(answered, other)
        if question is None or answer is None:
            continue  # counted where it was read, or one of the files has ended
        if question or answer:
            yield question, answer
    if asked != answered:
        raise UserError(
            f"{questions.place} has {asked:,} lines and {answers.place} has {answered:,}; "
            "line i of the one answers line i of the other, so give them as many"
        )
