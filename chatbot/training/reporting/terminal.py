"""What a run shows as text: the streams, which a closed terminal or a full disk does not break, and the lines."""

import contextlib
import datetime
import errno
import math
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from chatbot.display import duration, one_line
from chatbot.quiet import kept_output
from chatbot.training.run import Run
from chatbot.training.schedule import LEAST_STEPS

# The reader of a pipe has exited, or the terminal is closed.
GONE = (errno.EPIPE, errno.EIO)
# What a stream raises that is closed, or that does not exist: Python has none under Windows' pythonw.
UNUSABLE = (OSError, ValueError, AttributeError)
# Columns of the number of a step, at the beginning of a line.
STEP = 7
# The table of metrics: for each column its title, its key in a record, its width, and the format of a value.
COLUMNS = (
    ("loss", "loss", 9, ".4f"),
    ("tokens/s", "target_tokens_per_s", 10, ",.0f"),
    ("wait", "input_wait", 6, ".0%"),
    ("norm", "gradient_norm", 9, ".3f"),
    ("rate", "learning_rate", 10, ".3g"),
)
HEADER = f"{'step':>{STEP}}" + "".join(f"{title:>{width}}" for title, _, width, _ in COLUMNS)
# A longer time left, in seconds, is not shown, and may be beyond the dates that Python knows.
MOST_LEFT = 1e9


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


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to `line_stream`."""
    output = line_stream()
    output.write("".join(f"{line}\n" for line in lines))
    output.flush()


def _is_null(stream: Any) -> bool:
    """Return whether nothing reads a stream."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
    except AttributeError:
        return True
    except (OSError, ValueError):
        return False


def metrics_line(records: Sequence[dict[str, Any]], time_left: str = "") -> str:
    """Return a row of the table: the last step, means over the records, the time left."""
    line = f"{records[-1]['step']:>{STEP},}"
    for _, key, width, kind in COLUMNS:
        finite = [record[key] for record in records if math.isfinite(record[key])]
        line += f"{format(statistics.fmean(finite), kind) if finite else '-':>{width}}"
    return f"{line}  {time_left}".rstrip()


def question_line(question: str, reply: str) -> str:
    """Return a question and its reply."""
    return f"  {one_line(question)} -> {one_line(reply)}"


def steps_left(run: Run) -> tuple[int, str]:
    """Return the steps until the run ends; also "at least" or "at most" if validation may end it at another step.

    How many validations without a new best are still to come is not known: without a last step, the earliest end is
    all that can be said.
    """
    progress = run.progress
    last = run.calendar.last_step
    every = run.calendar.validate_every
    steps = 0 if last is None else max(0, last - progress.step)
    if not run.data.validation_decides or every is None:
        return steps, ""
    validations = max(1, run.settings.learning.patience - progress.without_best)
    earliest = max((progress.step // every + validations) * every, LEAST_STEPS)
    if last is None:
        return earliest - progress.step, "at least"
    return steps, "at most" if earliest < last else ""


def time_left(run: Run, seconds_per_step: float) -> str:
    """Return such as "at most 3:20:00 left, 2026-11-24 14:05"; "" if nothing is left, or too much for a date."""
    steps, bound = steps_left(run)
    seconds = steps * seconds_per_step
    limit = run.seconds_left
    if limit is not None and limit <= seconds:
        # Nothing else ends the run before its limit if the earliest other end is later.
        seconds = limit
        bound = bound.replace("at least", "")
    if not steps or seconds > MOST_LEFT:
        return ""
    end = datetime.datetime.now() + datetime.timedelta(seconds=seconds)
    return f"{bound} {duration(seconds)} left, {end:%Y-%m-%d %H:%M}".lstrip()
