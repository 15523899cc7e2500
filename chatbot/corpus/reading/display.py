"""Formatting of the user's text for one line of a message or of a terminal."""

import unicodedata


def one_line(text: str, longest: int = 200) -> str:
    """Return the beginning of the text, with ↵ for line ends and ? for characters that cannot be printed."""
    visible = text[:longest].replace("\r\n", "↵").replace("\n", "↵")
    line = "".join(character if character.isprintable() else "?" for character in visible)
    return line if len(text) <= longest else line + "…"


def width(text: str) -> int:
    """Return the columns that a text takes in a terminal: two for a wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def padded(text: str, columns: int) -> str:
    """Return the text with spaces up to this width."""
    return text + " " * (columns - width(text))


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
