"""Tables for a terminal: columns that fit its width, in which a Chinese character takes two columns."""

import shutil
import sys
import unicodedata
from collections.abc import Sequence

GAP = "  "


def terminal_width() -> int | None:
    """Return the columns of the terminal, None when the output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def width_of(text: str) -> int:
    """Return the columns that a terminal needs for a text."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def printable(text: str) -> str:
    """Return the text with "?" for characters that cannot be printed."""
    return "".join(character if character.isprintable() else "?" for character in text)


def shortened(text: str, width: int) -> str:
    """Return the text, or its beginning and … if it is wider than this."""
    if width_of(text) <= width:
        return text
    kept = ""
    for character in text:
        if width_of(kept + character) >= width:
            break
        kept += character
    return kept + "…"


def end_of(text: str, width: int) -> str:
    """Return the text, or … and its end if it is wider than this."""
    return shortened(text[::-1], width)[::-1]


def aligned(rows: Sequence[Sequence[str]], left: Sequence[bool], widths: Sequence[int] | None = None) -> list[str]:
    """Return the lines of a table.

    rows: their cells; characters that cannot be printed, as names of folders may have, are shown as "?". left: for each
    column, whether it is aligned to the left. widths: of the columns, by default that of their widest cells; longer
    cells are shortened.
    """
    widths = widths or column_widths(rows)
    lines = []
    for row in rows:
        cells = [shortened(printable(cell), width) for cell, width in zip(row, widths, strict=True)]
        padding = [" " * (width - width_of(cell)) for cell, width in zip(cells, widths, strict=True)]
        parts = (
            cell + spaces if at_left else spaces + cell
            for cell, spaces, at_left in zip(cells, padding, left, strict=True)
        )
        lines.append(GAP.join(parts).rstrip())
    return lines


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of the widest cell of each column."""
    return [max(map(width_of, column)) for column in zip(*rows, strict=True)]


def total_width(widths: Sequence[int]) -> int:
    """Return the width of a table with columns of these widths."""
    return sum(widths) + len(GAP) * (len(widths) - 1)
