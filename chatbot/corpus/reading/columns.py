"""Which two columns of a table, or fields of a record, are the question and the answer."""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chatbot.corpus.reading.shown import shown
from chatbot.errors import UserError

# In the order in which they are looked for: a "title" is the question only where nothing better is.
QUESTIONS = (
    *("question", "instruction", "query", "prompt", "input", "source", "src", "ask", "post", "title", "q"),
    *("问题", "提问", "问", "問題", "提問", "問", "上句", "输入"),
)
ANSWERS = (
    *("answer", "output", "response", "completion", "reply", "target", "tgt", "a"),
    *("答案", "回答", "答", "回复", "答复", "回覆", "答覆", "下句", "输出"),
)


@dataclass(frozen=True)
class Layout:
    """How the rows of a table are read."""

    question: int  # index of its column
    answer: int
    width: int  # columns of a row
    skip: int  # rows before the first pair


def checked(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns as given, none or two. Raises UserError for anything else."""
    numbers = [column for column in columns if column.isdecimal()]
    if len(columns) not in (0, 2) or len(set(columns)) != len(columns) or any(int(n) < 1 for n in numbers[:2]):
        raise UserError("--columns: give two, the question's and the answer's, by name or by number from 1")
    return tuple(columns)


@functools.lru_cache(maxsize=16)  # the records of a file have the same fields
def named(names: tuple[str, ...], columns: tuple[str, ...] = ()) -> tuple[int, int] | None:
    """Where the question and the answer stand among the names: the columns asked for, or else those known."""
    places = {name.strip().casefold(): index for index, name in reversed(list(enumerate(names)))}
    wanted: list[tuple[str, ...]] = [(column.casefold(),) for column in columns] or [QUESTIONS, ANSWERS]
    question, answer = (next((places[name] for name in choice if name in places), None) for choice in wanted)
    return None if question is None or answer is None else (question, answer)


def layout_of(rows: Sequence[Sequence[str]], columns: tuple[str, ...], place: str) -> Layout:
    """How to read a table that begins with these rows.

    Raises UserError when the columns asked for are not there, or there are more than two and none is known.
    """
    skip = int(rows[0][0].casefold() == "sep=")  # Excel's line that names the separator
    first = tuple(rows[skip]) if len(rows) > skip else ()
    if not columns or all(column.isdecimal() for column in columns):
        known = named(first)
        width = len(first) if known else _usual_width(rows[skip:])
        if columns:
            places: tuple[int, int] | None = (int(columns[0]) - 1, int(columns[1]) - 1)
        else:
            places = known or ((0, 1) if width == 2 else None)
    else:
        places = known = named(first, columns)
        width = len(first)
    if columns and width == 2 and (places is None or max(places) >= width):
        places = named(first) or (0, 1)  # of several files, one that has no other columns
    if places is None or max(places) >= width:
        found = ", ".join(f"{number} {shown(name, 20)!r}" for number, name in enumerate(first[:12], start=1))
        problem = f"no columns {' and '.join(columns)}" if columns else f"{width} columns, and which two are unknown"
        raise UserError(f"{place}: {problem}; give --columns and two of: {found}")
    return Layout(*places, width, skip + (known is not None))


def misfit(row: list[str], layout: Layout) -> str | None:
    """Why a row that is not as wide as the table cannot be used, if so. Empty columns at its end are taken off."""
    while len(row) > layout.width and not row[-1]:
        row.pop()
    if len(row) > layout.width:
        return "rows with too many columns"
    if len(row) <= max(layout.question, layout.answer):
        return "rows with too few columns"
    return None


def widths(rows: Iterable[Sequence[str]]) -> Counter[int]:
    """How many rows have how many columns, not counting empty ones beyond the second at a row's end."""
    found: Counter[int] = Counter()
    for row in rows:
        width = len(row)
        while width > 2 and not row[width - 1]:
            width -= 1
        found[width] += 1
    return found


def _usual_width(rows: Sequence[Sequence[str]]) -> int:
    found = widths(row for row in rows if len(row) > 1)
    return found.most_common(1)[0][0] if found else 0
