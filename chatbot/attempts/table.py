"""The table of all attempts, and tables for a terminal, in which a Chinese character takes two columns."""

import shutil
import sys
from collections.abc import Callable, Sequence

from chatbot.attempts.attempt import BROKEN, DAMAGED, Attempt
from chatbot.corpus.reading.display import padded, width

NONE = "-"
GAP = "  "
# The columns: heading, whether it is aligned to the left, and its cell. "nats" are the best nats per character of
# validation, and "at" is their step.
COLUMNS: dict[str, tuple[bool, Callable[[Attempt], str]]] = {
    "name": (True, lambda attempt: attempt.name),
    "data": (True, lambda attempt: shown_data(attempt.data)),
    "size": (True, lambda attempt: NONE if attempt.rnn_size is None else f"{attempt.rnn_size}x{attempt.num_layers}"),
    "weights": (False, lambda attempt: millions(attempt.weights)),
    "step": (False, lambda attempt: number(attempt.step)),
    "nats": (False, lambda attempt: nats(attempt.best_nats_per_character)),
    "at": (False, lambda attempt: number(attempt.best_step)),
    "saved": (True, lambda attempt: (attempt.saved or NONE)[:10]),
    "disk": (False, lambda attempt: megabytes(attempt.bytes)),
    "state": (True, lambda attempt: attempt.state),
}
# In a narrow terminal, these columns become narrower, down to so many characters, ...
FLEXIBLE = {"data": 6, "name": 12}
# ... and these are left out, in this order.
OPTIONAL = ("weights", "at", "size", "data", "disk", "saved")


def table(attempts: Sequence[Attempt], columns: int | None) -> list[str]:
    """Return the lines of the table, then a line for each attempt that is broken or damaged. None: any width."""
    for count in range(len(OPTIONAL) + 1):
        lines = _fitted(attempts, [name for name in COLUMNS if name not in OPTIONAL[:count]], columns)
        if lines is not None:
            break
    else:
        lines = _fitted(attempts, [name for name in COLUMNS if name not in OPTIONAL], None) or []
    broken = [
        printable(f"{attempt.name} is {attempt.state}: {attempt.problem}")
        for attempt in attempts
        if attempt.state in (BROKEN, DAMAGED)
    ]
    return [*lines, *([""] if broken else []), *broken]


def _fitted(attempts: Sequence[Attempt], names: Sequence[str], columns: int | None) -> list[str] | None:
    """Return the lines of a table with the columns of these names, None if they do not fit."""
    rows = [list(names), *([COLUMNS[name][1](attempt) for name in names] for attempt in attempts)]
    widths = column_widths(rows)
    if columns is not None:
        for name in filter(names.__contains__, FLEXIBLE):
            index = names.index(name)
            excess = max(0, total_width(widths) - columns)
            widths[index] = max(min(FLEXIBLE[name], widths[index]), widths[index] - excess)
        if total_width(widths) > columns:
            return None
    return aligned(rows, [COLUMNS[name][0] for name in names], widths)


def shown_data(names: Sequence[str]) -> str:
    """Return the first name and the number of further ones."""
    if len(names) > 1:
        return f"{shortened(names[0], 40)} +{len(names) - 1}"
    return names[0] if names else NONE


def number(value: int | None) -> str:
    """Return a number with thousands separators."""
    return NONE if value is None else f"{value:,}"


def nats(value: float | None) -> str:
    """Return nats per character."""
    return NONE if value is None else f"{value:.3f}"


def millions(value: int | None) -> str:
    """Return a number of weights in millions."""
    return NONE if value is None else f"{value / 1e6:.{1 if value >= 5e4 else 3}f}M"


def megabytes(size: int) -> str:
    """Return a size on the disk."""
    if size >= 999.5e6:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def aligned(rows: Sequence[Sequence[str]], left: Sequence[bool], widths: Sequence[int] | None = None) -> list[str]:
    """Return the lines of a table.

    rows: their cells; characters that cannot be printed, as names of folders may have, are shown as "?". left: for each
    column, whether it is aligned to the left. widths: of the columns, by default that of their widest cells; longer
    cells are shortened.
    """
    widths = widths or column_widths(rows)
    lines = []
    for row in rows:
        cells = []
        for cell, columns, at_left in zip(row, widths, left, strict=True):
            text = shortened(printable(cell), columns)
            cells.append(padded(text, columns) if at_left else " " * (columns - width(text)) + text)
        lines.append(GAP.join(cells).rstrip())
    return lines


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of the widest cell of each column."""
    return [max(map(width, column)) for column in zip(*rows, strict=True)]


def total_width(widths: Sequence[int]) -> int:
    """Return the width of a table with columns of these widths."""
    return sum(widths) + len(GAP) * (len(widths) - 1)


def terminal_width() -> int | None:
    """Return the columns of the terminal, None when the output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def printable(text: str) -> str:
    """Return the text with "?" for characters that cannot be printed."""
    return "".join(character if character.isprintable() else "?" for character in text)


def shortened(text: str, columns: int) -> str:
    """Return the text, or its beginning and … if it is wider than this."""
    if width(text) <= columns:
        return text
    kept = ""
    for character in text:
        if width(kept + character) >= columns:
            break
        kept += character
    return kept + "…"


def end_of(text: str, columns: int) -> str:
    """Return the text, or … and its end if it is wider than this."""
    return shortened(text[::-1], columns)[::-1]
