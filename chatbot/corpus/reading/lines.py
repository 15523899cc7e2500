"""The lines of a text, each in bounded memory, and those that cannot be used counted."""

import functools
from collections.abc import Callable, Iterable, Iterator

from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.text import Text
from chatbot.errors import UserError

LONGEST_LINE = 2**20  # characters
UNDECODABLE = "\ufffd"

Pair = tuple[str, str]


def raw_lines(text: Text, report: Report) -> Iterator[str]:
    """Each line with its end. "" stands for one that is too long or has a NUL character, which is counted."""
    readline = functools.partial(text.stream.readline, LONGEST_LINE + 1)
    for number, line in enumerate(iter(readline, ""), start=1):
        if len(line) > LONGEST_LINE and line[-1] not in "\r\n":
            while (rest := readline()) and rest[-1] not in "\r\n":
                pass
            report.drop(f"lines longer than {LONGEST_LINE:,} characters", f"{text.place}, line {number}")
            yield ""
        elif "\0" in line:
            report.drop("lines with NUL characters", f"{text.place}, line {number}")
            yield ""
        else:
            yield line


def lines(text: Text, report: Report) -> Iterator[tuple[int, str | None]]:
    """(number from 1, line without its end). None stands for a line that cannot be used, which is counted.

    Raises UserError at the end when that was more than half of the lines that are not blank.
    """
    bad = blank = number = 0
    for number, raw in enumerate(raw_lines(text, report), start=1):
        line = raw.rstrip("\r\n")
        if UNDECODABLE in line:
            report.drop(f"lines not {text.encoding}", f"{text.place}, line {number}")
            bad += 1
            yield number, None
        elif line:
            yield number, line
        elif raw:
            blank += 1
            yield number, line
        else:
            bad += 1
            yield number, None
    refuse_if_mostly_bad(text, report, bad, number - blank)


def decoded(pairs: Iterable[Pair], text: Text, report: Report, drop: Callable[[str], None]) -> Iterator[Pair]:
    """The pairs without those that could not be decoded, which are counted: `lines` for formats of no lines.

    Raises UserError at the end when that was more than half of them.
    """
    bad = count = 0
    for pair in pairs:
        count += 1
        if UNDECODABLE in pair[0] or UNDECODABLE in pair[1]:
            bad += 1
            drop(f"pairs not {text.encoding}")
        else:
            yield pair
    refuse_if_mostly_bad(text, report, bad, count)


def refuse_if_mostly_bad(text: Text, report: Report, bad: int, count: int) -> None:
    """Raises UserError when more than half of the lines (or pairs) are bad."""
    if bad * 2 > count:
        raise UserError(
            f"{text.place}: read as {text.encoding}, {bad:,} of {count:,} lines cannot be used "
            f"({'; '.join(report.lines()[:3])}); save it as UTF-8 text, one encoding throughout"
        )
