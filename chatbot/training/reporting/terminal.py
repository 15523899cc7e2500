"""What a run prints: lines of metrics, validations, warnings."""

import datetime
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from chatbot.config.learning import NATS
from chatbot.corpus.reading.display import one_line
from chatbot.evaluation.measures import Sample
from chatbot.quiet import kept_output
from chatbot.training.checkpoints.progress import shown
from chatbot.training.run import Run
from chatbot.training.schedule import LEAST_STEPS
from chatbot.training.validation import Validation

# Seconds between two lines of metrics. They grow to a sixtieth of the time since the start, up to MOST_BETWEEN.
LEAST_BETWEEN, MOST_BETWEEN = 10.0, 300.0
SHARE = 1 / 60
# Lines of metrics between two headers.
HEADER_EVERY = 20
# Columns of the number of a step, at the beginning of a line.
STEP = 7
# A longer time left is not shown.
MOST_LEFT = 1e9


def show(*lines: str) -> None:
    """Print lines on standard output, also with --quiet."""
    _print(lines, kept_output())


def warn(text: str) -> None:
    """Print a warning, without a full stop at its end, on standard error."""
    _print([f"Warning: {text}."], sys.stderr)


def _print(lines: Sequence[str], stream: Any) -> None:
    """Print lines. A closed terminal, a pipe without a reader or a full disk does not end a run.

    The file descriptor then becomes the null device, so that other code can write to it, too.
    """
    try:
        print(*lines, sep="\n", file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Terminal:
    """Prints the lines of a run. With --quiet, and on all machines but the chief, none. now: the time in seconds."""

    def __init__(self, run: Run, now: Callable[[], float] = time.monotonic) -> None:
        self._run, self._now = run, now
        self._shown = run.team.chief and not run.settings.run.quiet
        self._since_line: list[dict[str, Any]] = []  # the records since the last line of metrics
        self._started = self._last_line = now()
        self._rows = 0  # lines of metrics so far
        self._first: tuple[float, int] | None = None  # the time and the step of the first record

    def record(self, record: dict[str, Any]) -> None:
        """Take the metrics of a logged step, and show them if the last line is old enough."""
        now = self._now()
        self._first = self._first or (now, record["step"])  # the graphs are traced before it
        self._since_line.append(record)
        between = min(max(LEAST_BETWEEN, SHARE * (now - self._started)), MOST_BETWEEN)
        if not self._rows or now - self._last_line >= between:
            self._show_metrics()

    def validation(self, validation: Validation, best: bool | None) -> None:
        """Show a validation. best: whether it is the best so far; None for one that does not count."""
        progress = self._run.progress
        line = f"{progress.step:>{STEP},}  validation {validation.values[NATS]:.4f} nats per character"
        value = validation.values[progress.best_by]
        if progress.best_by != NATS and value is not None:
            line += f", {shown(value, progress.best_by)}"
        if best is None:
            line += ", at the end of --time-limit; it does not count"
        elif best:
            line += ", the best so far"
        elif self._run.data.validation_decides:
            line += f", no improvement ({progress.without_best} in a row)"
        self._show(line)

    def probe(self, samples: Sequence[Sample], replies: Sequence[str]) -> None:
        """Show the questions of --probe with their replies, a line each."""
        if samples and self._run.data.validation is None:  # else below the line of a validation
            self._show(f"step {self._run.progress.step:,}: replies")
        for sample, reply in zip(samples, replies, strict=True):
            self._show(question_line(sample.question, reply))

    def close(self) -> None:
        """Show the metrics since the last line."""
        if self._since_line:
            self._show_metrics()

    def _show_metrics(self) -> None:
        if self._rows % HEADER_EVERY == 0:
            self._show(HEADER)
        (began, first), now, step = self._first or (0.0, 0), self._now(), self._since_line[-1]["step"]
        left = time_left(self._run, (now - began) / (step - first)) if step > first else ""
        self._show(metrics_line(self._since_line, left))
        self._rows += 1
        self._last_line = now
        self._since_line = []

    def _show(self, line: str) -> None:
        if self._shown:
            show(line)


def question_line(question: str, reply: str) -> str:
    """Return a question and its reply."""
    return f"  {one_line(question)} -> {one_line(reply)}"


def duration(seconds: float) -> str:
    """Return a time as hours, minutes and seconds: "3:20:00", "2 days, 4:00:00"."""
    return str(datetime.timedelta(seconds=round(seconds)))


# The table of metrics: for each column its title, its key in a record, its width, and the format of a value.
METRICS = (
    ("loss", "loss", 9, ".4f"),
    ("tokens/s", "target_tokens_per_s", 10, ",.0f"),
    ("wait", "input_wait", 6, ".0%"),
    ("norm", "gradient_norm", 9, ".3f"),
    ("rate", "learning_rate", 10, ".3g"),
)
HEADER = f"{'step':>{STEP}}" + "".join(f"{title:>{columns}}" for title, _, columns, _ in METRICS)


def metrics_line(records: Sequence[dict[str, Any]], time_left: str = "") -> str:
    """Return a row of the table: the last step, means over the records, the time left."""
    line = f"{records[-1]['step']:>{STEP},}"
    for _, key, columns, kind in METRICS:
        finite = [record[key] for record in records if math.isfinite(record[key])]
        line += f"{format(statistics.fmean(finite), kind) if finite else '-':>{columns}}"
    return f"{line}  {time_left}".rstrip()


def steps_left(run: Run) -> tuple[int, str]:
    """Return the steps until the run ends; also "at least" or "at most" if validation may end it at another step.

    How many validations without a new best are still to come is not known: without a last step, the earliest end is
    all that can be said.
    """
    progress, last, every = run.progress, run.calendar.last_step, run.calendar.validate_every
    steps = 0 if last is None else max(0, last - progress.step)
    if not run.data.validation_decides or every is None:
        return steps, ""
    validations = max(1, run.settings.learning.patience - progress.without_best)
    earliest = max((progress.step // every + validations) * every, LEAST_STEPS)
    if last is None:
        return earliest - progress.step, "at least"
    return steps, "at most" if earliest < last else ""


def time_left(run: Run, seconds_per_step: float) -> str:
    """Return such as "at most 3:20:00 left"; "" if nothing is left, or too much."""
    steps, bound = steps_left(run)
    seconds, limit = steps * seconds_per_step, run.seconds_left
    if limit is not None and limit <= seconds:
        # Nothing else ends the run before its limit if the earliest other end is later.
        seconds, bound = limit, bound.replace("at least", "")
    if not steps or seconds > MOST_LEFT:
        return ""
    return f"{bound} {duration(seconds)} left".lstrip()
