"""Formats and prints the console output of a training run."""

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
from chatbot.quiet import original_stdout
from chatbot.training.run import Run
from chatbot.training.schedule import MIN_STEPS

# Error codes of writing to a pipe without a reader, or to a closed terminal.
NO_READER = (errno.EPIPE, errno.EIO)
# Exceptions of writing to a closed stream, or to None. Python programs without a console have no standard streams.
STREAM_ERRORS = (OSError, ValueError, AttributeError)
# The width of the step number at the beginning of a line.
STEP = 7
# The columns of the metrics table: title, record key, width and number format.
COLUMNS = (
    ("loss", "loss", 9, ".4f"),
    ("tokens/s", "target_tokens_per_s", 10, ",.0f"),
    ("wait", "input_wait", 6, ".0%"),
    ("norm", "gradient_norm", 9, ".3f"),
    ("rate", "learning_rate", 10, ".3g"),
)
HEADER = f"{'step':>{STEP}}" + "".join(f"{title:>{width}}" for title, _, width, _ in COLUMNS)
# A longer remaining time, in seconds, is not displayed, because Python could not represent the date of its end.
MAX_TIME_LEFT = 1e9


class Stream:
    """A text stream that ignores write errors, so that a closed terminal or a full disk does not end a run.

    After the terminal or pipe was closed, output is redirected to the null device. Other code can then still write to
    the same stream without errors.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Any = stream

    def write(self, text: str) -> None:
        """Write text, or drop it if writing fails."""
        try:
            self._stream.write(text)
        except STREAM_ERRORS as error:
            self._redirect(error)

    def flush(self) -> None:
        """Flush the stream if possible."""
        try:
            self._stream.flush()
        except STREAM_ERRORS as error:
            self._redirect(error)

    @property
    def is_terminal(self) -> bool:
        """Whether the stream is a terminal."""
        with contextlib.suppress(*STREAM_ERRORS):
            return self._stream.isatty()
        return False

    def _redirect(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in NO_READER:
            with contextlib.suppress(*STREAM_ERRORS):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._stream.fileno())
                os.close(null)

    # A Stream equals the stream that it wraps, because tqdm compares its stream with sys.stdout and sys.stderr.

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
    """Return the stream for results that are printed even with --quiet.

    This is standard output, or standard error if standard output is discarded.
    """
    output = original_stdout()
    return Stream(sys.stderr if _is_null(output) and not _is_null(sys.stderr) else output)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to `line_stream`."""
    output = line_stream()
    output.write("".join(f"{line}\n" for line in lines))
    output.flush()


def _is_null(stream: Any) -> bool:
    """Return whether a stream is closed or writes to the null device."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
    except AttributeError:
        return True
    except (OSError, ValueError):
        return False


def metrics_line(records: Sequence[dict[str, Any]], time_left: str = "") -> str:
    """Format a row of the metrics table: the last step, the means over the records and the time left."""
    line = f"{records[-1]['step']:>{STEP},}"
    for _, key, width, format_spec in COLUMNS:
        finite = [record[key] for record in records if math.isfinite(record[key])]
        line += f"{format(statistics.fmean(finite), format_spec) if finite else '-':>{width}}"
    return f"{line}  {time_left}".rstrip()


def question_line(question: str, reply: str) -> str:
    """Format a question and its reply as one line."""
    return f"  {one_line(question)} -> {one_line(reply)}"


def steps_left(run: Run) -> tuple[int, str]:
    """Return the number of steps left, with "at least", "at most", or "" if it is exact.

    The number can be inexact, because a run may end as soon as the validation loss no longer improves.
    """
    progress = run.progress
    last = run.calendar.last_step
    every = run.calendar.validate_every
    steps = 0 if last is None else max(0, last - progress.step)
    if not run.data.validation_decides or every is None:
        return steps, ""
    validations = max(1, run.settings.learning.patience - progress.without_best)
    earliest = max((progress.step // every + validations) * every, MIN_STEPS)
    if last is None:
        return earliest - progress.step, "at least"
    return steps, "at most" if earliest < last else ""


def time_left(run: Run, seconds_per_step: float) -> str:
    """Format the time left, such as "at most 3:20:00 left, 2026-11-24 14:05"; "" if it is zero or too long."""
    steps, bound = steps_left(run)
    seconds = steps * seconds_per_step
    limit = run.seconds_left
    if limit is not None and limit <= seconds:
        # The time limit ends the run before validation can, so the time left is exact.
        seconds = limit
        bound = bound.replace("at least", "")
    if not steps or seconds > MAX_TIME_LEFT:
        return ""
    end = datetime.datetime.now() + datetime.timedelta(seconds=seconds)
    return f"{bound} {duration(seconds)} left, {end:%Y-%m-%d %H:%M}".lstrip()
