"""The streams that a run writes its lines to: a closed terminal or a full disk does not end it."""

import contextlib
import errno
import os
import sys
from typing import Any, TextIO

from chatbot.quiet import kept_output

# The reader of a pipe has exited, or the terminal is closed.
GONE = (errno.EPIPE, errno.EIO)
# What a stream raises that is closed, or that does not exist: Python has none under Windows' pythonw.
UNUSABLE = (OSError, ValueError, AttributeError)


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


def _is_null(stream: Any) -> bool:
    """Return whether nothing reads a stream."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
    except AttributeError:
        return True
    except (OSError, ValueError):
        return False
