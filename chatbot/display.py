"""The user's text in one line of a message or of a terminal, and the characters of its scripts."""

import datetime
import unicodedata
from collections.abc import Iterable, Sequence

LINE = 200  # characters of a message
SHOWN_NAME = 20  # characters of a name of a column in a message
# Invisible characters that join others, as in emoji of several people and in Persian.
JOINERS = "\u200c\u200d"
# Of a class of characters in a pattern: ideographs, and these with kana.
CHINESE = "\u3400-\u9fff"
CHINESE_OR_KANA = f"\u3040-\u30ff{CHINESE}"


def one_line(text: str, longest: int = 200) -> str:
    """Return the beginning of the text, with ↵ for line ends and ? for characters that cannot be printed."""
    beginning = text[:longest].replace("\r\n", "↵").replace("\n", "↵")
    line = "".join(character if character.isprintable() else "?" for character in beginning)
    return line if len(text) <= longest else line + "…"


def visible(text: str) -> str:
    """Return a text as one line, without control characters, which could move the cursor or change its direction.

    White space becomes spaces. Any other character that cannot be printed becomes U+FFFD.
    """
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character.isprintable() or character in JOINERS:
        return character
    return " " if character.isspace() else "\ufffd"


def decodable(text: str) -> str:
    """Return a text without lone surrogates, which have no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def numbered(names: Iterable[str]) -> list[str]:
    """Return the names of columns with their numbers, as --columns takes either."""
    return [f"{number} {one_line(name, SHOWN_NAME)!r}" for number, name in enumerate(names, start=1)]


def listing(message: str, names: Sequence[str]) -> str:
    """Return a message that ends with a list of names: two, and as many others as the line has room for."""
    count = len(names)
    while count > 2 and len(f"{message}{', '.join(names[:count])}, ...") > LINE:
        count -= 1
    return f"{message}{', '.join(names[:count])}{', ...' if count < len(names) else ''}"


def width(text: str) -> int:
    """Return the columns that a text takes in a terminal: two for a wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def padded(text: str, columns: int) -> str:
    """Return the text with spaces up to this width."""
    return text + " " * (columns - width(text))


def aligned(rows: Sequence[Sequence[str]], left: Sequence[bool], indent: str = "") -> list[str]:
    """Return the lines of a table. left: for each column, whether it is aligned to the left.

    Characters that cannot be printed, as names of folders may have, are shown as "?".
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
    """Return the text, cut to this width; one that is cut ends in "..."."""
    if width(text) <= columns:
        return text
    mark = "..."[:columns]
    end = len(text)
    while width(text[:end]) > columns - len(mark):
        end -= 1
    return text[:end] + mark


def counted(number: float, noun: str) -> str:
    """Return a number and what it counts, for a noun that takes an s: "1 step", "2,000 steps", "0.5 minutes"."""
    return f"{number:{'g' if isinstance(number, float) else ','}} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a time as hours, minutes and seconds: "3:20:00", "2 days, 4:00:00"."""
    return str(datetime.timedelta(seconds=round(seconds)))
