"""Formatting of text for messages and terminals: single lines, fixed widths, tables and lists."""

import datetime
import unicodedata
from collections.abc import Iterable, Sequence

LINE = 200  # maximum number of characters in a message
SHOWN_NAME = 20  # maximum number of characters of a column name in a message
# Invisible characters that control whether adjacent characters are joined, as in some emoji and in Persian.
JOINERS = "\u200c\u200d"
# Character ranges for regular expressions: Chinese characters, and Chinese characters with Japanese kana.
CHINESE = "\u3400-\u9fff"
CHINESE_OR_KANA = f"\u3040-\u30ff{CHINESE}"


def one_line(text: str, longest: int = 200) -> str:
    """Return the beginning of a text as one line. Line ends become ↵, and unprintable characters become "?"."""
    beginning = text[:longest].replace("\r\n", "↵").replace("\n", "↵")
    line = "".join(character if character.isprintable() else "?" for character in beginning)
    return line if len(text) <= longest else line + "…"


def visible(text: str) -> str:
    """Return a text as one line that is safe to print in a terminal.

    Whitespace becomes spaces. Unprintable characters become U+FFFD, because they could move the cursor, for example.
    """
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character.isprintable() or character in JOINERS:
        return character
    return " " if character.isspace() else "\ufffd"


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def number_names(names: Iterable[str]) -> list[str]:
    """Add a number to each column name, because --columns accepts names and numbers."""
    return [f"{number} {one_line(name, SHOWN_NAME)!r}" for number, name in enumerate(names, start=1)]


def listing(message: str, names: Sequence[str]) -> str:
    """Append names to a message: as many as fit on the line, but at least two."""
    count = len(names)
    while count > 2 and len(f"{message}{', '.join(names[:count])}, ...") > LINE:
        count -= 1
    return f"{message}{', '.join(names[:count])}{', ...' if count < len(names) else ''}"


def width(text: str) -> int:
    """Return the width of a text in terminal columns. Wide characters take 2 columns, and combining characters none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def padded(text: str, columns: int) -> str:
    """Pad a text with spaces to a width in terminal columns."""
    return text + " " * (columns - width(text))


def align_columns(rows: Sequence[Sequence[str]], left: Sequence[bool], indent: str = "") -> list[str]:
    """Return the lines of a table with aligned columns. Unprintable characters become "?".

    Args:
        rows: Texts of the cells, [rows][columns].
        left: Whether to left-align each column.
        indent: Text before each line.
    """
    rows = [list(map(one_line, row)) for row in rows]
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, left, strict=True)
        texts = (padded(c, w) if at_left else " " * (w - width(c)) + c for c, w, at_left in cells)
        lines.append(f"{indent}{'  '.join(texts)}".rstrip())
    return lines


def cut(text: str, columns: int) -> str:
    """Truncate a text to a width in terminal columns. A truncated text ends in "..."."""
    if width(text) <= columns:
        return text
    mark = "..."[:columns]
    end = len(text)
    while width(text[:end]) > columns - len(mark):
        end -= 1
    return text[:end] + mark


def pluralize(number: float, noun: str) -> str:
    """Return a number and a noun in singular or plural, such as "1 step", "2,000 steps" or "0.5 minutes"."""
    return f"{number:{'g' if isinstance(number, float) else ','}} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds, such as "3:20:00" or "2 days, 4:00:00"."""
    return str(datetime.timedelta(seconds=round(seconds)))
