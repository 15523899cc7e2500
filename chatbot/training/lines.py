"""The lines that a run shows, fitted to the columns of the terminal."""

import math
import statistics
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from chatbot.corpus.reading.display import cut, one_line, width

# Columns of the number of a step, at the beginning of a line.
STEP = 7
# Columns of the smallest progress bar that is shown.
SMALLEST_BAR = 10


class Column(NamedTuple):
    """A column of the table of metrics."""

    title: str
    key: str  # in a record
    columns: int
    shown: Callable[[float], str]


METRICS = (
    Column("loss", "loss", 9, "{:.4f}".format),
    Column("tokens/s", "target_tokens_per_s", 10, "{:,.0f}".format),
    Column("wait", "input_wait", 6, "{:.0%}".format),
    Column("norm", "gradient_norm", 9, "{:.3f}".format),
    Column("rate", "learning_rate", 10, "{:.3g}".format),
)


def fitting(lines: Sequence[str], columns: int | None) -> str:
    """Return the first line that fits into the columns; if none does, the last one, cut. None: all fit."""
    if columns is None:
        return lines[0]
    return next((line for line in lines if width(line) <= columns), cut(lines[-1], columns))


def wrapped(text: str, columns: int | None) -> str:
    """Return a text in lines of at most these columns, broken between words. None: in one line."""
    if columns is None:
        return text
    indent = " " * (len(text) - len(text.lstrip())) + "  "
    return textwrap.fill(text, columns, subsequent_indent=indent, break_on_hyphens=False)


def aligned(rows: Sequence[Sequence[str]], texts: int, columns: int | None, indent: str = "  ") -> list[str]:
    """Return the lines of a table. The first columns, texts, are on the left, and the others on the right.

    Where the table is wider than `columns`, its last columns continue on further lines. None: no limit.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    parts: list[list[int]] = [[]]  # the numbers of the columns on each line of a row
    for number in range(len(widths)):
        used = sum(widths[other] + 2 for other in parts[-1])
        if columns is not None and parts[-1] and len(indent) + 2 * (len(parts) > 1) + used + widths[number] > columns:
            parts.append([])
        parts[-1].append(number)
    lines = []
    for row in rows:
        for before, part in zip(["", *["  "] * len(parts)], parts, strict=False):
            cells = [row[i].ljust(widths[i]) if i < texts else row[i].rjust(widths[i]) for i in part]
            if any(cell.strip() for cell in cells):
                line = indent + before + "  ".join(cells).rstrip()
                lines.append(line if columns is None else cut(line, columns))
    return lines


def header(columns: int | None, time_left: bool) -> str:
    """Return the titles of the table of metrics. time_left: whether it has the column of the time left."""
    cells = [f"{'step':>{STEP}}", *(f"{column.title:>{column.columns}}" for column in METRICS)]
    return _as_fits([*cells, "  time left, end"] if time_left else cells, columns)


def metrics_line(records: Sequence[dict[str, Any]], columns: int | None, time_left: str = "") -> str:
    """Return a row of the table: the last step, and the means over the records. Columns that do not fit are left out.

    time_left: the last cell; "" for none.
    """
    cells = [f"{records[-1]['step']:>{STEP},}"]
    for column in METRICS:
        values = [value for record in records if (value := record.get(column.key)) is not None]
        finite = [value for value in values if math.isfinite(value)]
        cells.append(f"{column.shown(statistics.fmean(finite)) if finite else '-':>{column.columns}}")
    return _as_fits([*cells, f"  {time_left}"] if time_left else cells, columns)


def _as_fits(cells: Sequence[str], columns: int | None) -> str:
    line = cells[0]
    for cell in cells[1:]:
        if columns is not None and width(line + cell) > columns:
            break
        line += cell
    return line


def question_line(question: str, reply: str, columns: int | None) -> str:
    """Return a question and its reply. A long question leaves half of the columns to the reply."""
    question, reply = one_line(question), one_line(reply)
    if columns is not None:
        available = max(columns - len("   -> "), 2)
        question = cut(question, max(available // 2, available - width(reply)))
        reply = cut(reply, available - width(question))
    return f"  {question} -> {reply}"


def bar_format(columns: int, loss: float | None, step: int, last_step: int | None, speed: str, status: str) -> str:
    """Return the line of the progress bar, with the loss first, and {bar} where the bar is drawn.

    speed: such as "7.2 steps/s". status: the time left, or what takes long at the moment. Both may be "".
    """
    count = f"step {step:,}" if last_step is None else f"{step:,}/{last_step:,}"
    pieces = ["" if loss is None else f"loss {loss:.4f}", count, speed, status]
    for left_out in ((), (2,), (1, 2)):
        kept = [piece for number, piece in enumerate(pieces) if piece and number not in left_out]
        if width("  ".join(kept)) <= columns:
            break
    line = cut("  ".join(kept), columns)
    if last_step is None or columns - width(line) - 2 < SMALLEST_BAR:
        return line
    return "  ".join(["{bar}", *kept] if loss is None else [kept[0], "{bar}", *kept[1:]])
