"""Whether the first row of a table is a header, and whether a column holds dates, running numbers or names."""

import itertools
import re
from collections.abc import Container, Sequence

# Names as programs give them: column_a, text1, questionText, Unnamed: 0.
IDENTIFIER = re.compile(r"[A-Za-z]+(_[A-Za-z0-9]+)+|[A-Za-z]+[0-9]{1,2}|[a-z]+[A-Z][A-Za-z]*|Unnamed: \d+")
DATE_WORDS = re.compile(
    r"(?<![a-z])(am|pm|a\.m\.|p\.m\.|t|z|utc|gmt|mon|tue|wed|thu|fri|sat|sun|"
    r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)(?![a-z])|上午|下午|凌晨|早上|中午|晚上|"
    r"星期.|周[一二三四五六日]|[年月日号時时分秒]"
)
NUMBERS = re.compile(r"(?=\D*\d)[\s\d/.:,\-\[\]()]+")
MOST = 0.9  # of the cells; a few may be damaged
# Names and labels: at most FEW_VALUES, two or more, in at least FEWEST_CELLS.
FEW_VALUES, FEWEST_CELLS = 10, 50


def is_header(rows: Sequence[Sequence[str]], names: Container[str]) -> bool:
    """Return whether the first of these rows of two columns is a header. names: well-known names of columns.

    A pair must not be taken for a header: both cells are different well-known names, or both are different identifiers
    and no cell below them is.
    """
    first = [cell.strip() for cell in rows[0][:2]]
    if len(first) < 2 or len(rows) < 2 or first[0].casefold() == first[1].casefold():
        return False
    if all(cell.casefold() in names for cell in first):
        return True
    if not all(IDENTIFIER.fullmatch(cell) for cell in first):
        return False
    return not any(IDENTIFIER.fullmatch(cell.strip()) for row in rows[1:] for cell in row[:2])


def holds_dates(cells: Sequence[str]) -> bool:
    """Return whether nearly all of these cells are numbers, dates or times."""
    found = sum(NUMBERS.fullmatch(DATE_WORDS.sub(" ", cell.casefold())) is not None for cell in cells)
    return bool(cells) and found >= MOST * len(cells)


def holds_running_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first column counts the rows, as the index that pandas writes: without a name."""
    first = rows[0][0].strip() if rows else ""
    numbers = [row[0].strip() for row in rows]
    if first in ("", "Unnamed: 0"):
        numbers = numbers[1:]
    if len(numbers) < 2 or not all(number.isdecimal() and number.isascii() for number in numbers):
        return False
    values = [int(number[:18]) for number in numbers]
    steps = sum(after - before == 1 for before, after in itertools.pairwise(values))
    return steps >= MOST * (len(values) - 1)


def holds_few_values(cells: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether these cells repeat a few values, as names and labels do, while the others differ."""
    values = len(set(cells))
    return 1 < values <= FEW_VALUES and len(cells) >= FEWEST_CELLS and len(set(others)) * 2 > len(others)


def holds_words(cells: Sequence[str]) -> bool:
    """Return whether a long column has no digits, so that no number is an answer to it."""
    return len(cells) >= FEWEST_CELLS and not any(character.isdigit() for cell in cells for character in cell)
