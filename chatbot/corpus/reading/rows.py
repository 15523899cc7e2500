"""The rows of a table in a text: its separator, how quotes within quotes are written, rows that cannot be read.

Programs write two kinds of tab-separated values. Most write the text as it is, so that a quotation mark is a part of
the text. Spreadsheets and pandas enclose cells in quotes, which may then contain doubled quotes, tabs and line ends.
"""

import csv
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.text_file import MAX_LINE, UNDECODABLE, TextFile, lines, raw_lines, refuse_if_mostly_bad
from chatbot.errors import UserError

PREAMBLE = 10  # rows, such as a title or what a chat is about, that may stand above a header
SEPARATORS = "|;,"  # the rarer in text first: of two that fit equally well, the first is taken
EXCEL = "UTF-16 LE"  # the charset of its "Unicode text", whose quotes enclose cells
csv.field_size_limit(MAX_LINE)  # of the process; the default of 131,072 makes rows of the lines of a longer cell


class Dialect(NamedTuple):
    """The characters of a table that are not text."""

    separator: str
    is_quoted: bool = True  # whether quotes enclose cells; else they are text
    escape: str | None = None  # the character before a quote inside quotes, beside a second quote


class Table(NamedTuple):
    """A table whose rows can be read once."""

    place: str  # for messages
    format: str
    sample: list[list[str]]  # the first rows that are not empty
    rows: Iterator[tuple[int, list[str]]]  # (number, row) of all of them
    unit: str = "line"  # what the numbers count


def rows_of_text(text: TextFile, dialect: Dialect, report: Report) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of its first line, row) for each row that is not empty and can be read.

    Raises UserError at the end if more than half of the rows could not be decoded.
    """
    if not dialect.is_quoted:
        for number, line in lines(text, report):
            if line and not line.isspace():
                yield number, line.split(dialect.separator)
        return

    def broken(line: int) -> None:
        report.drop("rows with a stray or unclosed quote", f"{text.place}, line {line}")

    bad = count = 0
    for number, row, _ in parsed(raw_lines(text, report), dialect, text.place, broken):
        if not any(row):
            continue
        count += 1
        if UNDECODABLE in "".join(row):
            bad += 1
            report.drop(f"rows not {text.charset}", f"{text.place}, line {number}")
        else:
            yield number, row
    refuse_if_mostly_bad(text, report, bad, count)


def parsed(
    source: Iterable[str], dialect: Dialect, place: str, broken: Callable[[int], None] = lambda line: None
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield (number of its first line, row, its lines) for each row in which quotes enclose cells.

    Calls `broken` with the number of a line that begins a row with a stray or open quote. Only this line is lost: the
    other lines inside an open quote are parsed again. Raises UserError for a cell that is too large.
    """
    source = iter(source)
    again: deque[str] = deque()
    row_lines: list[str] = []  # of the current row, bounded by the largest cell

    def feed() -> Iterator[str]:
        while (line := again.popleft() if again else next(source, None)) is not None:
            row_lines.append(line)
            yield line

    def reader() -> Iterator[list[str]]:
        # Files written by hand often have a space between comma and quote.
        return csv.reader(
            feed(),
            delimiter=dialect.separator,
            escapechar=dialect.escape,
            strict=True,
            skipinitialspace=dialect.separator != "\t",
        )

    number = 1
    rows = reader()
    while True:
        row_lines.clear()
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if "limit" in str(error):
                raise UserError(
                    f"{place}, line {number}: a cell of more than {MAX_LINE:,} characters, or a quote that is not "
                    "closed; correct that line"
                ) from None
            broken(number)
            again.extendleft(reversed(row_lines[1:]))
            number += 1
            rows = reader()
            continue
        yield number, row, row_lines.copy()
        number += len(row_lines)


def sample_of(text: TextFile, dialect: Dialect) -> list[list[str]]:
    """Return the first rows of a text that are not empty."""
    if not dialect.is_quoted:
        return [line.rstrip("\r\n").split(dialect.separator) for line in text.first_lines if line.strip()]
    return [row for _, row, _ in parsed(text.first_lines, dialect, text.place) if any(row)]


def dialects_of(text: TextFile, has_tabs: bool = False) -> list[Dialect]:
    """Return how the lines of a text may be divided: the only way, if half of them have a tab, or each separator's.

    has_tabs: whether the user says that tabs divide them.
    """
    filled = [line for line in text.first_lines if line.strip()]
    if has_tabs or sum("\t" in line.lstrip() for line in filled) * 2 >= len(filled):
        return [Dialect("\t", text.charset == EXCEL or _is_quoted(filled))]
    sample = "".join(filled)
    escape = "\\" if '\\"' in sample and not _DOUBLED.search(sample) else None
    return [Dialect(separator, escape=escape) for separator in SEPARATORS if separator in sample]


_DOUBLED = re.compile(r'(?<![\\,;|\n])""(?![,;|\r\n])')  # a quote within quotes


def usual_width(rows: Iterable[Sequence[str]]) -> tuple[int, float]:
    """Return the most frequent number of columns, without empty ones at the end, and the share of rows that have it."""
    counts: Counter[int] = Counter()
    for row in rows:
        width = len(row)
        while width > 2 and not row[width - 1]:
            width -= 1
        counts[width] += 1
    if not counts:
        return 0, 0.0
    width, count = max(counts.items(), key=lambda item: (item[1], item[0]))
    return width, count / counts.total()


# Which cells a program encloses in quotes: those where it must, for Excel also those with a comma; texts; all.
_QUOTED: tuple[Callable[[str], bool], ...] = (
    lambda cell: any(character in cell for character in '"\t\r\n'),
    lambda cell: any(character in cell for character in '"\t\r\n,'),
    lambda cell: cell.strip("0123456789.-+") != "",
    lambda cell: True,
)


def _is_quoted(sample: Sequence[str]) -> bool:
    """Return whether a program enclosed cells of these lines in quotes.

    It did if most lines with a quote are those that a program writes for the rows. If these lines could as well be
    text, cells on a single line decide, such as "say ""hi"" first".
    """
    if not any('"' in line for line in sample):
        return False
    rows = [(row, raw) for _, row, raw in parsed(sample, Dialect("\t"), "") if any(row)]
    width, share = usual_width(row for row, _ in rows)
    quoted = [(row, raw) for row, raw in rows if len(row) == width > 1 and any('"' in line for line in raw)]
    written = max(([raw for row, raw in quoted if _is_written(row, raw, fits)] for fits in _QUOTED), key=len)
    lines_of_text = [line.rstrip("\r\n").split("\t") for line in sample]
    text_width, text_share = usual_width(lines_of_text)
    others = sum('"' in line for line in sample) - sum('"' in line for raw in written for line in raw)
    if not written or len(written) <= others or share < text_share:
        return False
    return any(len(raw) == 1 for raw in written) or text_share < 1 or text_width < 2


def _is_written(row: Sequence[str], raw: Sequence[str], fits: Callable[[str], bool]) -> bool:
    """Return whether a program that encloses the cells that fit in quotes writes a row as these lines."""
    cells = ('"' + cell.replace('"', '""') + '"' if fits(cell) else cell for cell in row)
    return "".join(raw).rstrip("\r\n") == "\t".join(cells)
