"""Splits the lines of a text into table rows, and detects separators and quoting.

Tab-separated files are quoted or unquoted. Most programs write text without quoting, so a quotation mark is part of the
text. Spreadsheets and pandas put cells in quotation marks, so that they can contain tabs and line breaks.
"""

import csv
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.text_file import MAX_LINE, UNDECODABLE, TextFile, check_mostly_usable, lines, raw_lines
from chatbot.errors import UserError

PREAMBLE = 10  # maximum number of rows above a header row, such as a title
SEPARATORS = "|;,"  # The separators that are rarest in text come first, because they are preferred.
EXCEL = "UTF-16 LE"  # charset of Excel's "Unicode text" format, in which cells are quoted
csv.field_size_limit(MAX_LINE)  # maximum cell size; the default is 131,072


class Dialect(NamedTuple):
    """The separator and the quoting of a table."""

    separator: str
    is_quoted: bool = True  # whether quotation marks can enclose cells; if not, they are part of the text
    escape: str | None = None  # character before a quotation mark inside a quoted cell; None if the mark is doubled


def rows_of_text(text: TextFile, dialect: Dialect, report: Report) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a table, each with the number of its first line. Empty and unreadable rows are skipped.

    Raises:
        UserError: At the end, if more than half of the rows could not be decoded.
    """
    if not dialect.is_quoted:
        for number, line in lines(text, report):
            if line and not line.isspace():
                yield number, line.split(dialect.separator)
        return

    def drop_line(line: int) -> None:
        report.drop("rows with a stray or unclosed quote", f"{text.place}, line {line}")

    bad = count = 0
    for number, row, _ in parse_quoted(raw_lines(text, report), dialect, text.place, drop_line):
        if not any(row):
            continue
        count += 1
        if UNDECODABLE in "".join(row):
            bad += 1
            report.drop(f"rows not {text.charset}", f"{text.place}, line {number}")
        else:
            yield number, row
    check_mostly_usable(text, report, bad, count)


def parse_quoted(
    source: Iterable[str], dialect: Dialect, place: str, drop_line: Callable[[int], None] = lambda line: None
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Parse a table with quoted cells.

    If a row has a stray or unclosed quote, only its first line is dropped, and the following lines are parsed again.

    Args:
        source: The lines of the table.
        dialect: The separator and the escape character.
        place: Name of the table, shown in the error.
        drop_line: Called with the number of each dropped line.

    Yields:
        For each row, the number of its first line, its cells and its lines.

    Raises:
        UserError: If a cell is too large.
    """
    source = iter(source)
    retried: deque[str] = deque()
    row_lines: list[str] = []  # lines of the current row

    def read_lines() -> Iterator[str]:
        while (line := retried.popleft() if retried else next(source, None)) is not None:
            row_lines.append(line)
            yield line

    settings: dict[str, Any] = {"delimiter": dialect.separator, "escapechar": dialect.escape, "strict": True}
    settings["skipinitialspace"] = dialect.separator != "\t"  # Files written by hand often have spaces after commas.
    number = 1
    rows = csv.reader(read_lines(), **settings)
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
            drop_line(number)
            retried.extendleft(reversed(row_lines[1:]))
            number += 1
            rows = csv.reader(read_lines(), **settings)
            continue
        yield number, row, row_lines.copy()
        number += len(row_lines)


def sample_rows(text: TextFile, dialect: Dialect) -> list[list[str]]:
    """Return the first non-empty rows of a text."""
    if not dialect.is_quoted:
        return [line.rstrip("\r\n").split(dialect.separator) for line in text.first_lines if line.strip()]
    return [row for _, row, _ in parse_quoted(text.first_lines, dialect, text.place) if any(row)]


def find_dialects(text: TextFile, has_tabs: bool = False) -> list[Dialect]:
    """Return the possible dialects of a table.

    If half of the lines contain a tab, or `has_tabs` is true, the only dialect is the one for tabs. Otherwise, there is
    one dialect for each separator that occurs in the text.
    """
    filled = [line for line in text.first_lines if line.strip()]
    if has_tabs or sum("\t" in line.lstrip() for line in filled) * 2 >= len(filled):
        return [Dialect("\t", text.charset == EXCEL or _is_quoted(filled))]
    sample = "".join(filled)
    escape = "\\" if '\\"' in sample and not _DOUBLED.search(sample) else None
    return [Dialect(separator, escape=escape) for separator in SEPARATORS if separator in sample]


_DOUBLED = re.compile(r'(?<![\\,;|\n])""(?![,;|\r\n])')  # doubled quotation mark inside a cell


def find_usual_width(rows: Iterable[Sequence[str]]) -> tuple[int, float]:
    """Return the most frequent number of columns and the fraction of rows with it. Empty last cells are ignored."""
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


# Which cells do programs quote? Some quote only cells for which it is necessary, Excel also cells with commas, others
# all cells except numbers, and some all cells. Each function returns whether such a program quotes a cell.
_QUOTED: tuple[Callable[[str], bool], ...] = (
    lambda cell: any(character in cell for character in '"\t\r\n'),
    lambda cell: any(character in cell for character in '"\t\r\n,'),
    lambda cell: cell.strip("0123456789.-+") != "",
    lambda cell: True,
)


def _is_quoted(sample: Sequence[str]) -> bool:
    """Return whether a program quoted the cells. If so, most lines with quotes are exactly what a program writes."""
    if not any('"' in line for line in sample):
        return False
    rows = [(row, raw) for _, row, raw in parse_quoted(sample, Dialect("\t"), "") if any(row)]
    width, share = find_usual_width(row for row, _ in rows)
    quoted = [(row, raw) for row, raw in rows if len(row) == width > 1 and any('"' in line for line in raw)]
    matching = max(([raw for row, raw in quoted if _would_be_written(row, raw, fits)] for fits in _QUOTED), key=len)
    lines_of_text = [line.rstrip("\r\n").split("\t") for line in sample]
    text_width, text_share = find_usual_width(lines_of_text)
    others = sum('"' in line for line in sample) - sum('"' in line for raw in matching for line in raw)
    if not matching or len(matching) <= others or share < text_share:
        return False
    return any(len(raw) == 1 for raw in matching) or text_share < 1 or text_width < 2


def _would_be_written(row: Sequence[str], raw: Sequence[str], needs_quotes: Callable[[str], bool]) -> bool:
    """Return whether the lines `raw` result from writing a row and quoting the cells that `needs_quotes` selects."""
    cells = ('"' + cell.replace('"', '""') + '"' if needs_quotes(cell) else cell for cell in row)
    return "".join(raw).rstrip("\r\n") == "\t".join(cells)
