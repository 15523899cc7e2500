"""What a run shows: on a terminal a progress bar with lines above it, elsewhere plain lines."""

import datetime
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

from chatbot.config.learning import NATS
from chatbot.evaluation.measures import Sample
from chatbot.model.checkpoint import better_last
from chatbot.training.checkpoints.progress import shown
from chatbot.training.display import duration, error_stream, line_stream, question_line
from chatbot.training.run import Run
from chatbot.training.schedule import LEAST_STEPS
from chatbot.training.validation import Validation

# Seconds between two lines of metrics, on a terminal and elsewhere. They grow to a sixtieth of the time since the
# start, up to MOST_BETWEEN.
BETWEEN_ON_TERMINAL, BETWEEN, MOST_BETWEEN = 10.0, 60.0, 300.0
SHARE = 1 / 60
# Lines of metrics between two headers.
HEADER_EVERY = 20
# Columns of the number of a step, at the beginning of a line.
STEP = 7
# A longer time left is not shown, and may be beyond the dates that Python knows.
MOST_LEFT = 1e9
# The bar of a run with a last step, and of one without.
BAR = "{desc}  {bar}  {n_fmt}/{total_fmt}  {rate_fmt}{postfix}"
BAR_WITHOUT_END = "{desc}  step {n_fmt}  {rate_fmt}{postfix}"


class Terminal:
    """Shows a run: metrics and validations as lines on standard output, the bar and warnings on standard error.

    There is no bar where standard error is no terminal, or TERM is "dumb". With --quiet, and on all machines but the
    chief, only warnings are shown. now: the time in seconds.
    """

    def __init__(self, run: Run, now: Callable[[], float] = time.monotonic) -> None:
        self._run, self._now = run, now
        self._shown = run.team.chief and not run.settings.run.quiet
        self._lines, self._errors = line_stream(), error_stream()
        self._since_line: list[dict[str, Any]] = []  # the records since the last line of metrics
        self._started = self._last_line = now()
        self._rows = 0  # lines of metrics so far
        self._steps = 0  # of this process
        self._first: tuple[float, int] | None = None  # the time of the first record, and the steps until then
        last, step = run.calendar.last_step, run.progress.step
        with_bar = self._shown and self._errors.is_terminal and os.environ.get("TERM") != "dumb"
        self._bar = tqdm(
            desc="compiling",  # until the first record
            total=last,
            initial=step,
            leave=False,
            file=self._errors,
            disable=not with_bar,
            dynamic_ncols=True,
            unit=" steps",
            bar_format=BAR_WITHOUT_END if last is None else BAR,
        )

    def advance(self) -> None:
        """Count a step."""
        self._steps += 1
        self._bar.update(self._run.progress.step - self._bar.n)

    def warn(self, text: str) -> None:
        """Print a line on standard error."""
        tqdm.write(f"Warning: {text}.", file=self._errors)
        self._errors.flush()

    def record(self, record: dict[str, Any]) -> None:
        """Take the metrics of a logged step, and show them if the last line is old enough."""
        now = self._now()
        self._first = self._first or (now, self._steps)  # the graphs are traced before it
        self._since_line.append(record)
        self._bar.set_description_str(f"loss {record['loss']:.4f}", refresh=False)
        self._bar.set_postfix_str(self.time_left(), refresh=False)
        least = BETWEEN_ON_TERMINAL if self._lines.is_terminal else BETWEEN
        if not self._rows or now - self._last_line >= min(max(least, SHARE * (now - self._started)), MOST_BETWEEN):
            self._show_metrics()

    def validation(self, validation: Validation, best: bool | None) -> None:
        """Show a validation. best: whether it is the best so far; None for one that does not count."""
        progress = self._run.progress
        line = f"{progress.step:>{STEP},}  validation {validation.values[NATS]:.4f} nats per character"
        value = validation.values[progress.best_by]
        if progress.best_by != NATS and value is not None:
            line += f", {shown(value, progress.best_by)}"
        if best is None:
            is_better = better_last(self._run.settings.run.directory) is not None
            use = "chat uses this checkpoint" if is_better else "it does not count"
            line += f", at the end of --time-limit; {use}"
        elif best:
            line += ", the best so far"
        elif self._run.data.validation_decides:
            line += f", no improvement ({progress.without_best} in a row)"
        self._print(line)

    def probe(self, samples: Sequence[Sample], replies: Sequence[str]) -> None:
        """Show the questions of --probe with their replies, a line each."""
        if samples and self._run.data.validation is None:  # else below the line of a validation
            self._print(f"step {self._run.progress.step:,}: replies")
        for sample, reply in zip(samples, replies, strict=True):
            self._print(question_line(sample.question, reply))

    def went_back(self) -> None:
        """Show the step that the run has gone back to."""
        self._since_line = []
        self._bar.update(self._run.progress.step - self._bar.n)

    def close(self) -> None:
        """Show the metrics since the last line, and remove the bar."""
        if self._since_line:
            self._show_metrics()
        self._bar.close()

    def time_left(self) -> str:
        """Return the time left, by the mean time of the steps of this process; "" before two records."""
        if self._first is None or self._steps == self._first[1]:
            return ""
        began, before = self._first
        return time_left(self._run, (self._now() - began) / (self._steps - before))

    def _show_metrics(self) -> None:
        if self._rows % HEADER_EVERY == 0:
            self._print(HEADER)
        # A terminal with a bar shows the time left there.
        self._print(metrics_line(self._since_line, self.time_left() if self._bar.disable else ""))
        self._rows += 1
        self._last_line = self._now()
        self._since_line = []

    def _print(self, line: str) -> None:
        """Print a line above the bar."""
        if self._shown:
            tqdm.write(line, file=self._lines)
            self._lines.flush()


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
    """Return such as "at most 3:20:00 left, 2026-11-24 14:05"; "" if nothing is left, or too much for a date."""
    steps, bound = steps_left(run)
    seconds, limit = steps * seconds_per_step, run.seconds_left
    if limit is not None and limit <= seconds:
        # Nothing else ends the run before its limit if the earliest other end is later.
        seconds, bound = limit, bound.replace("at least", "")
    if not steps or seconds > MOST_LEFT:
        return ""
    end = datetime.datetime.now() + datetime.timedelta(seconds=seconds)
    return f"{bound} {duration(seconds)} left, {end:%Y-%m-%d %H:%M}".lstrip()
