"""CSV as in RFC 4180: quotes, doubled quotes, line ends inside quotes; separated by commas or semicolons."""

import csv
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from chatbot.corpus.reading.columns import layout_of, misfit, named, widths
from chatbot.corpus.reading.lines import UNDECODABLE, Pair, raw_lines, refuse_if_mostly_bad
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.text_file import TextFile, first_lines

SAME_WIDTH_SHARE = 0.6  # of the rows; in prose, the number of commas varies more


def delimiter_of(sample: list[str]) -> str | None:
    """Return the separator with which most rows have the same number of columns, None if neither does."""
    best, delimiter = 0, None
    for candidate in ",;":
        rows = [row for _, row in rows_of(sample, candidate, lambda number: None) if row]
        if not rows:
            continue
        width, count = widths(rows).most_common(1)[0]
        header = next((row for row in rows if row[0].casefold() != "sep="), [])
        if named(tuple(header)):
            return candidate
        if width > 1 and count > best and count >= SAME_WIDTH_SHARE * len(rows):
            best, delimiter = count, candidate
    return delimiter


def rows_of(lines: Iterable[str], delimiter: str, broken: Callable[[int], None]) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of its first line, row). Call `broken` with the first line of a row with a stray or open quote.

    Only the first line is lost: the other lines inside an open quote are parsed again.
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

    number = 1
    # Files written by hand often have a space between comma and quote.
    reader = csv.reader(feed(), delimiter=delimiter, strict=True, skipinitialspace=True)
    while True:
        row_lines.clear()
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            broken(number)
            again.extendleft(reversed(row_lines[1:]))
            number += 1
            reader = csv.reader(feed(), delimiter=delimiter, strict=True, skipinitialspace=True)
            continue
        yield number, row
        number += len(row_lines)


def read_csv(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a CSV file, from its two columns or those named by its header or `options.columns`."""
    sample = first_lines(text)
    delimiter = delimiter_of(sample) or ","
    rows = [row for _, row in rows_of(sample, delimiter, lambda number: None) if row]
    layout = layout_of(rows, options.columns, text.place)
    question, answer, skip = layout.question, layout.answer, layout.skip
    bad = count = 0

    def broken(line: int) -> None:
        report.drop("rows with a stray or unclosed quote", f"{text.place}, line {line}")

    for number, row in rows_of(raw_lines(text, report), delimiter, broken):
        if not row:
            continue
        count += 1
        if skip:
            skip -= 1
        elif len(row) != layout.width and (problem := misfit(row, layout)):
            report.drop(problem, f"{text.place}, line {number}")
        elif UNDECODABLE in row[question] or UNDECODABLE in row[answer]:
            bad += 1
            report.drop(f"rows not {text.encoding}", f"{text.place}, line {number}")
        else:
            yield row[question], row[answer]
    refuse_if_mostly_bad(text, report, bad, count)
