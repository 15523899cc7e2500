"""Why two columns may not be a question and its answer: no texts, names, labels or choices, two languages."""

import itertools
import re
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from chatbot.display import CHINESE_OR_KANA, counted

DATE_WORDS = re.compile(
    r"(?<![a-z])(am|pm|a\.m\.|p\.m\.|t|z|utc|gmt|mon|tue|wed|thu|fri|sat|sun|"
    r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)(?![a-z])|上午|下午|凌晨|早上|中午|晚上|"
    r"星期.|周[一二三四五六日]|[年月日号時时分秒元块岁]"
)
NUMBER_CHARACTERS = frozenset("0123456789 \t/.:,-+[]()%$€£¥￥")
# An address of mail or of a page, a path or the name of a file, an id.
ADDRESS = re.compile(
    r"[^\s@]{1,64}@[^\s@]{1,255}|(?:https?://|www\.)\S*|(?:[A-Za-z]:\\|/)[^\s?？]*|[\w-]{1,64}\.[A-Za-z]\w{1,3}"
    r"|(?=[^\W_]*\d)(?=\d*[A-Za-z])[0-9A-Za-z_-]{6,64}"
)
QUESTION_MARKS = ("?", "？", "؟", ";")
LONGEST_CELL = 300  # characters; a longer cell is text
LEAST_ROWS = 3  # fewer tell nothing: "a\ta" and "a\tb" may be two answers to one question
MOST = 0.9  # of the cells; a few may be damaged
# Rows for each value of a column that repeats its values: two_names_and_messages.tsv; people repeat short answers, too.
NAMES, LABELS = 3, 6
FEW_LABELS = 10  # different ones
MANY = 10  # rows for each of a few short values that stand together, of which an ordinary question has less
NAME, CHINESE_NAME = 20, 6  # characters
LABEL = 4  # characters of a short word of Chinese, with twice as many in other scripts

Cell = TypeVar("Cell")
_CHINESE = re.compile(f"[{CHINESE_OR_KANA}]")
_SCRIPTS = [
    re.compile(f"[{letters}]")
    for letters in (
        *("A-Za-z\u00c0-\u024f", CHINESE_OR_KANA, "\uac00-\ud7af", "\u0400-\u052f"),
        *("\u0370-\u03ff", "\u0590-\u05ff", "\u0600-\u06ff", "\u0900-\u097f", "\u0e00-\u0e7f"),
    )
]
_CHOICE = re.compile(r"[(（]?(?:[A-H]{1,4}|[a-h])[)）.]?|[A-H](?:[,、 ] ?[A-H]){1,4}")
_PART_OF_SPEECH = re.compile(r"(?:[a-z]{1,6}\.[/&,、;；\s]*)+")  # of the words in a list: "n. ", "vt./vi. "
_SENTENCE = re.compile(r"[，。！？…!?]|[.,;]\s|\S+\s+\S+\s+\S+\s+\S+")


def doubt_of(rows: Sequence[Sequence[str]], column: str = "column") -> str:
    """Return why these rows of two columns may be no pairs, "" if they are. column: what the sides of a row are called.

    Every text is a possible answer, so only what people do not write as a question or an answer is a reason.
    """
    rows = [*dict.fromkeys((row[0], row[1]) for row in rows)]  # repeated pairs tell nothing about their columns
    if len(rows) < LEAST_ROWS:
        return ""
    firsts, seconds = ([row[side].strip()[:LONGEST_CELL] for row in rows] for side in range(2))
    asked = sum(cell.endswith(QUESTION_MARKS) for cell in firsts) * 2 >= len(firsts)
    sides = (("first", firsts, seconds), ("second", seconds, firsts))
    for side, cells, others in sides[: 1 if asked else 2]:
        is_first = side == "first"
        if _mostly(cells, _is_no_text):
            return f"the {side} {column} has numbers, addresses or ids"
        if _mostly(cells, _has_tags):
            return f"the {side} {column} has words with tags"
        values = len(set(cells))
        if is_first and _are_labels_of(cells, others):
            return f"the first {column} has {counted(values, 'value')}, as labels have"
        if _repeats(cells, others, NAMES if is_first else LABELS) and (is_first or values <= FEW_LABELS):
            chat = "; if it is a chat, add a first line such as sender,content" if is_first and values > 1 else ""
            return f"the {side} {column} has {counted(values, 'value')}, as names or labels have{chat}"
    if _mostly(rows, lambda row: "".join(row[0].split()) == "".join(row[1].split())):
        return f"the {column}s have the same text"
    if are_choices(seconds):
        return f"the second {column} has letters, as of choices"
    without_parts_of_speech = [_PART_OF_SPEECH.sub("", cell) for cell in seconds]
    return f"the {column}s are in two languages" if _differ_in_script(firsts, without_parts_of_speech) else ""


def are_choices(cells: Sequence[str]) -> bool:
    """Return whether nearly all of these answers are letters of choices, not all the same."""
    texts = [cell.strip() for cell in cells if cell.strip()]
    letters = {cell for cell in texts if _CHOICE.fullmatch(cell)}
    return len(texts) >= LEAST_ROWS and len(letters) > 1 and _mostly(texts, letters.__contains__)


def _is_no_text(cell: str) -> bool:
    """Return whether a cell is a number, a date, a time, an address or an id."""
    remainder = cell if NUMBER_CHARACTERS.issuperset(cell) else DATE_WORDS.sub(" ", cell.casefold())
    is_date = NUMBER_CHARACTERS.issuperset(remainder) and any(map(str.isdigit, remainder))
    return is_date or ADDRESS.fullmatch(cell) is not None


def _has_tags(cell: str) -> bool:
    return len(cell) > 2 and " " in cell and all("/" in word[1:] for word in cell.split())


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


def _mostly(cells: Sequence[Cell], fits: Callable[[Cell], bool]) -> bool:
    return sum(map(fits, cells)) >= MOST * len(cells)


def _repeats(cells: Sequence[str], others: Sequence[str], rows: int) -> bool:
    """Return whether these cells repeat short values, as names and labels do, beside others that differ.

    Several answers to a question, or questions with one answer, stand together; names and labels change from row to row
    unless they are sorted, with many rows of each.
    """
    values = set(cells)
    if len(values) == 1:
        return len(set(others)) > 1
    if not all(map(_may_be_name, values)) or len(values) > len(set(others)):
        return False
    if len(values) * rows <= len(cells) and _runs(cells) > 1.5 * len(values):
        return True
    return len(values) * MANY <= len(cells) and _are_short(values)


def _are_labels_of(cells: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether these cells are short words, some of them repeated apart, beside sentences."""
    values = set(cells)
    labels = all(map(_may_be_name, values)) and _are_short(values) and _runs(cells) > len(values)
    return labels and _mostly(others, lambda cell: _SENTENCE.search(cell) is not None)


def _are_short(values: Collection[str]) -> bool:
    return _mostly([*values], lambda value: len(value) <= (LABEL if _CHINESE.search(value) else 2 * LABEL))


def _runs(cells: Sequence[str]) -> int:
    return 1 + sum(first != second for first, second in itertools.pairwise(cells))


def _may_be_name(value: str) -> bool:
    longest = CHINESE_NAME if _CHINESE.search(value[:NAME]) else NAME
    return len(value) <= longest and _SENTENCE.search(value) is None


def _differ_in_script(firsts: Sequence[str], seconds: Sequence[str]) -> bool:
    shares = [[sum(map(bool, map(script.search, cells))) for script in _SCRIPTS] for cells in (firsts, seconds)]
    most = MOST * len(firsts)
    few = len(firsts) - most
    only = [
        [own >= most and other <= few for own, other in zip(*order, strict=True)] for order in (shares, shares[::-1])
    ]
    return any(only[0]) and any(only[1])
