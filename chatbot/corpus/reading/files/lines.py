"""The lines of a text, read in bounded memory; lines that cannot be used are counted."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator

from chatbot.corpus.reading.files.text_file import TextFile
from chatbot.corpus.reading.pair import NEW, Pair, linked
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

MAX_LINE = 2**20  # characters
MANY_NUL = 0.1  # of the characters of a line; fewer are stray ones, and are left out
UNDECODABLE = "\ufffd"


_RULE = re.compile(r"\s*[-=*#_~+—─]{3,}(?:\s*[^-=*#_~+—─]{1,40}[-=*#_~+—─]{3,})?\s*")


def is_rule(line: str) -> bool:
    """Return whether a line is drawn to separate others, with a title or without: "-----", "=== 2 ==="."""
    return _RULE.fullmatch(line[:200]) is not None


def raw_lines(text: TextFile, report: Report) -> Iterator[str]:
    """Yield each line with its line end, or "" for a line that is too long or full of NUL, which the report counts."""
    readline = functools.partial(text.stream.readline, MAX_LINE + 1)
    for number, line in enumerate(iter(readline, ""), start=1):
        if len(line) > MAX_LINE and line[-1] not in "\r\n":
            while (rest := readline()) and rest[-1] not in "\r\n":
                pass
            report.drop(f"lines longer than {MAX_LINE:,} characters", f"{text.place}, line {number}")
            yield ""
        elif "\0" in line and line.count("\0") <= MANY_NUL * len(line):
            yield line.replace("\0", "")
        elif "\0" in line:
            report.drop("lines with NUL characters", f"{text.place}, line {number}")
            yield ""
        else:
            yield line


def lines(text: TextFile, report: Report) -> Iterator[tuple[int, str | None]]:
    """Yield (number from 1, line without its line end), with None for an unusable line, which the report counts.

    Raises UserError at the end if more than half of the lines that are not blank are unusable.
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


def decoded(pairs: Iterable[Pair], text: TextFile, report: Report, drop: Callable[[str], None]) -> Iterator[Pair]:
    """Yield the pairs that could be decoded, and count the others; for formats that are not read line by line.

    The pair after one that is left out begins a new conversation.
    Raises UserError at the end if more than half of the pairs could not be decoded.
    """
    bad = count = 0
    interrupted = False
    for pair in pairs:
        count += 1
        if UNDECODABLE in pair[0] or UNDECODABLE in pair[1]:
            bad += 1
            drop(f"pairs not {text.encoding}")
            interrupted = True
        else:
            yield linked(pair, NEW) if interrupted else pair
            interrupted = False
    refuse_if_mostly_bad(text, report, bad, count)


def refuse_if_mostly_bad(text: TextFile, report: Report, bad: int, count: int) -> None:
    """Raise UserError when more than half of the lines (or pairs) are bad."""
    if bad * 2 > count:
        raise UserError(
            f"{text.place}: read as {text.encoding}, {bad:,} of {count:,} lines cannot be used "
            f"({'; '.join(report.lines()[:3])}); name the encoding with --encoding, or save the whole file as UTF-8"
        )
