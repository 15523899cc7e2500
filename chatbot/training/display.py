"""Lines fitted to the columns of a terminal, and the streams that a run writes them to, which may be closed."""

import contextlib
import datetime
import errno
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

from chatbot.corpus.reading.display import cut, one_line, width
from chatbot.quiet import kept_output

MINUTE, HOUR, DAY = 60, 3600, 86400
# The reader of a pipe has exited, or the terminal is closed.
GONE = (errno.EPIPE, errno.EIO)
# What a stream raises that is closed, or that does not exist: Python has none under Windows' pythonw.
UNUSABLE = (OSError, ValueError, AttributeError)
# Columns of a terminal that does not report its size.
COLUMNS = 80


class Stream:
    """A text stream that drops what cannot be written, so that a closed terminal or a full disk does not end a run.

    When its reader is gone, the file descriptor becomes the null device, so that other code can write to it, too.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Any = stream

    def write(self, text: str) -> None:
        """Write a text, or drop it."""
        try:
            self._stream.write(text)
        except UNUSABLE as error:
            self._redirect(error)

    def flush(self) -> None:
        """Flush the stream if possible."""
        try:
            self._stream.flush()
        except UNUSABLE as error:
            self._redirect(error)

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads the stream on a terminal."""
        with contextlib.suppress(*UNUSABLE):
            return self._stream.isatty()
        return False

    @property
    def redraws_lines(self) -> bool:
        """Whether the stream is a terminal that can replace the line of the cursor."""
        return self.is_terminal and os.environ.get("TERM") != "dumb"

    @property
    def columns(self) -> int | None:
        """The columns of the terminal that may be filled without a wrap; None for a stream that is no terminal."""
        if not self.is_terminal:
            return None
        columns = 0
        with contextlib.suppress(*UNUSABLE):
            columns = os.get_terminal_size(self._stream.fileno()).columns
        return max((columns or COLUMNS) - 1, 1)  # some terminals wrap after the last column

    def _redirect(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in GONE:
            with contextlib.suppress(*UNUSABLE):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._stream.fileno())
                os.close(null)

    # tqdm compares streams with sys.stdout and sys.stderr.

    def __eq__(self, other: object) -> bool:
        return self._stream == (other._stream if isinstance(other, Stream) else other)

    def __hash__(self) -> int:
        return hash(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def error_stream() -> Stream:
    """Return standard error, for the progress bar and warnings."""
    return Stream(sys.stderr)


def line_stream() -> Stream:
    """Return the stream that --quiet does not discard: standard output, or standard error if nothing reads that."""
    output = kept_output()
    return Stream(sys.stderr if _is_null(output) and not _is_null(sys.stderr) else output)


def print_wrapped(text: str) -> None:
    """Print a line, on a terminal several if it is long."""
    print(wrapped(text, output_columns()))


def output_columns() -> int | None:
    """Return the columns of standard output; None if it is no terminal."""
    return Stream(sys.stdout).columns


def _is_null(stream: Any) -> bool:
    """Return whether nothing reads a stream."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
    except AttributeError:
        return True
    except (OSError, ValueError):
        return False


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
    """Return the lines of a table, texts on the left. Columns beyond `columns` continue on further lines."""
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


def question_line(question: str, reply: str, columns: int | None) -> str:
    """Return a question and its reply. A long question leaves half of the columns to the reply."""
    question, reply = one_line(question), one_line(reply)
    if columns is not None:
        available = max(columns - len("   -> "), 2)
        question = cut(question, max(available // 2, available - width(reply)))
        reply = cut(reply, available - width(question))
    return f"  {question} -> {reply}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units: "45 s", "12 min", "3 h 20 min", "2 d 4 h"."""
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    if seconds < HOUR:
        return f"{seconds // MINUTE:.0f} min"
    if seconds < DAY:
        return f"{seconds // HOUR:.0f} h {seconds % HOUR // MINUTE:.0f} min"
    return f"{seconds // DAY:,.0f} d {seconds % DAY // HOUR:.0f} h"


def clock(seconds: float, now: datetime.datetime) -> str:
    """Return the time in so many seconds: "14:05" today, "Mon 14:05" within six days, else "2026-12-02 14:05"."""
    try:
        end = now + datetime.timedelta(seconds=seconds)
    except OverflowError:
        return "never"
    if end.date() == now.date():
        return f"{end:%H:%M}"
    return f"{end:%a %H:%M}" if (end.date() - now.date()).days < 7 else f"{end:%Y-%m-%d %H:%M}"
