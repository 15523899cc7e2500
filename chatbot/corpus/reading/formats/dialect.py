"""The dialect of a CSV text, detected from its beginning: the separator, and how quotes within quotes are written."""

import csv
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from chatbot.corpus.reading.formats.columns import header_row, widths
from chatbot.corpus.reading.open.text_file import UNDECODABLE, TextFile, raw_lines, refuse_if_mostly_bad
from chatbot.corpus.reading.report import Report

SEPARATORS = "|;,"  # the rarer in text first: of two that fit equally well, the first is taken
TABLE_ENDINGS = ("csv", "tsv", "tab")  # of names of files


@dataclass(frozen=True)
class Dialect:
    """The characters of a table that are not text."""

    separator: str
    escape: str | None = None  # the character before a quote inside quotes, beside a second quote


COMMAS, TABS = Dialect(","), Dialect("\t")


@dataclass(frozen=True)
class Shape:
    """A sample read in one dialect."""

    dialect: Dialect
    rows: list[list[str]]  # without blank lines
    width: int  # the usual number of columns
    same: int  # rows of the usual width in which two cells or more have text
    total: int  # rows, with those that cannot be read

    @property
    def share(self) -> float:
        """The share of the rows that have the usual width."""
        return self.same / self.total if self.total else 0.0


def rows_of(
    lines: Iterable[str], dialect: Dialect, broken: Callable[[int], None] = lambda number: None
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield (number of its first line, row, its lines) for each row.

    Calls `broken` with the number of a line that begins a row with a stray or open quote. Only this line is lost: the
    other lines inside an open quote are parsed again.
    """
    source = iter(lines)
    again: deque[str] = deque()
    row_lines: list[str] = []  # of the current row, bounded by csv's limit of 131,072 characters a field

    def feed() -> Iterator[str]:
        while True:
            line = again.popleft() if again else next(source, None)
            if line is None:
                return
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
        except csv.Error:
            broken(number)
            again.extendleft(reversed(row_lines[1:]))
            number += 1
            rows = reader()
            continue
        yield number, row, row_lines.copy()
        number += len(row_lines)


def rows_of_text(
    text: TextFile, report: Report, dialect: Dialect, columns: Sequence[int] = ()
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield (number of its first line, row, its lines) for each row that has cells and can be read.

    columns: those that must have been decoded.
    Raises UserError at the end if more than half of the rows could not be decoded.
    """

    def broken(line: int) -> None:
        report.drop("rows with a stray or unclosed quote", f"{text.place}, line {line}")

    bad = count = 0
    for number, row, row_lines in rows_of(raw_lines(text, report), dialect, broken):
        if not row:
            continue
        count += 1
        if any(UNDECODABLE in row[column] for column in columns if column < len(row)):
            bad += 1
            report.drop(f"rows not {text.charset}", f"{text.place}, line {number}")
        else:
            yield number, row, row_lines
    refuse_if_mostly_bad(text, report, bad, count)


def dialect_of(sample: Sequence[str], least: float = 2.0) -> Dialect | None:
    """Return the dialect of the table that begins with these lines, None if it is no table.

    Its header names the question and the answer, or at least this share of its rows has the same number of columns.
    """
    shapes = [shape for shape in _shapes(sample) if shape.rows]
    for shape in shapes:
        if _header_of(shape) is not None:
            return shape.dialect
    wide = [shape for shape in shapes if shape.width > 1 and shape.share >= least]
    return max(wide, key=lambda shape: shape.same).dialect if wide else None


def _shapes(sample: Sequence[str]) -> list[Shape]:
    """Return the sample in the best dialect of each separator."""
    text = "".join(sample)
    best = []
    for separator in SEPARATORS:
        dialects = [Dialect(separator)]
        if '\\"' in text:  # of two dialects that fit equally well, the first is taken
            doubled = re.search(r'(?<![\\,;|\n])""(?![,;|\r\n])', text) is not None
            dialects.insert(int(doubled), Dialect(separator, escape="\\"))
        shapes = [_shape(sample, dialect) for dialect in dialects]
        escaped = dialects[0].escape is not None and shapes[0].share == 1  # its rows may be fewer, of more lines
        best.append(shapes[0] if escaped else max(shapes, key=lambda shape: shape.same))
    return best


def _shape(sample: Sequence[str], dialect: Dialect) -> Shape:
    broken: list[int] = []
    rows = [row for _, row, _ in rows_of(sample, dialect, broken.append) if row]
    counts = widths(rows)
    width = counts.most_common(1)[0][0] if counts else 0
    same = sum(_has_width(row, width) for row in rows)
    if (below := rows[1:]) and len(rows[0]) == max(map(len, below)) and not _has_width(rows[0], width):
        same += all(rows[0])  # a header, which also names columns that are empty
    return Shape(dialect, rows, width, same, len(rows) + len(broken))


def _has_width(row: Sequence[str], width: int) -> bool:
    return len(row) >= width and not any(row[width:]) and sum(map(bool, row)) > 1


def _header_of(shape: Shape) -> tuple[int, int] | None:
    """Return the places of question and answer in the header, if the rows below it have as many columns."""
    start, known = header_row(shape.rows)
    below = [row for row in shape.rows[start + 1 :] if len(row) > 1]
    return known if known and len(below) * 2 >= len(shape.rows) - start - 1 else None
