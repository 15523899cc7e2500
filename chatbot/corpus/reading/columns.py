"""Selection of the question and answer columns of a table, or fields of a record."""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chatbot.corpus.reading.display import one_line
from chatbot.errors import UserError

# In order of preference: "title" is the question only without a better name.
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
    """The column indices of a table."""

    question: int  # column index
    answer: int  # column index
    width: int  # number of columns
    skip: int  # rows before the first pair


def check_columns(columns: Sequence[str]) -> None:
    """Raise UserError unless there are none or two different columns, by name or by number from 1."""
    numbers = [column for column in columns if column.isdecimal()]
    if len(columns) not in (0, 2) or len(set(columns)) != len(columns) or any(int(n) < 1 for n in numbers[:2]):
        raise UserError("--columns: give two, the question's and the answer's, by name or by number from 1")


@functools.lru_cache(maxsize=16)  # the records of a file have the same fields
def named(names: tuple[str, ...], columns: tuple[str, ...] = ()) -> tuple[int, int] | None:
    """Return the indices of question and answer among the names: of the given columns, or of well-known names."""
    places = {name.strip().casefold(): index for index, name in reversed(list(enumerate(names)))}
    wanted: list[tuple[str, ...]] = [(column.casefold(),) for column in columns] or [QUESTIONS, ANSWERS]
    question, answer = (next((places[name] for name in choice if name in places), None) for choice in wanted)
    return None if question is None or answer is None else (question, answer)


def layout_of(rows: Sequence[Sequence[str]], columns: tuple[str, ...], place: str) -> Layout:
    """Return the layout of a table that begins with these rows.

    Raises UserError when a given column does not exist, or when none is given, the table has more than two columns and
    no header names them.
    """
    skip = int(bool(rows) and rows[0][0].casefold() == "sep=")  # Excel's first line, which names the separator
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
        places = named(first) or (0, 1)  # one of several files, which has only the two
    if places is None or max(places) >= width:
        found = ", ".join(f"{number} {one_line(name, 20)!r}" for number, name in enumerate(first[:12], start=1))
        problem = (
            f"no columns {' and '.join(columns)}"
            if columns
            else f"{width} columns, and no header names the question and the answer"
        )
        raise UserError(f"{place}: {problem}; give --columns and two of: {found}")
    return Layout(*places, width, skip + (known is not None))


def misfit(row: list[str], layout: Layout) -> str | None:
    """Remove empty columns at the end of a row; return the reason if it still does not fit, else None."""
    while len(row) > layout.width and not row[-1]:
        row.pop()
    if len(row) > layout.width:
        return "rows with too many columns"
    if len(row) <= max(layout.question, layout.answer):
        return "rows with too few columns"
    return None


def widths(rows: Iterable[Sequence[str]]) -> Counter[int]:
    """Count the rows by their number of columns, without empty columns at the end; the first two always count."""
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
