"""The streams that a run writes to, which may be terminals, files, pipes, or nothing."""

import contextlib
import errno
import os
import sys
from typing import Any, TextIO

from chatbot.quiet import kept_output
from chatbot.training.lines import wrapped

# The reader of a pipe has exited, or the terminal is closed.
GONE = (errno.EPIPE, errno.EIO)
# What a stream raises that is closed, or that does not exist: Python has none under Windows' pythonw.
UNUSABLE = (OSError, ValueError, AttributeError)
# Columns of a terminal that does not report its size.
COLUMNS = 80


class Stream:
    """A text stream that drops what cannot be written, so that a closed terminal or a full disk does not end a run.

    When its reader is gone, the file descriptor is redirected to the null device: later output of other code to the
    same stream does not fail either.
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
    """Return the stream for the lines of a run and its summary, which --quiet does not discard.

    That is standard output, or standard error if the former is discarded.
    """
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
