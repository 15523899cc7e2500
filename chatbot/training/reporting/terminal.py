"""What a run shows: on a terminal a progress bar with lines above it, elsewhere plain lines."""

import datetime
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from chatbot.config.learning import NATS
from chatbot.evaluation.measures import Sample
from chatbot.training.checkpoints.progress import shown
from chatbot.training.lines import STEP, bar_format, fitting, header, metrics_line, question_line, wrapped
from chatbot.training.reporting.time_left import Speed, steps_left, time_left
from chatbot.training.run import Run
from chatbot.training.streams import Stream, error_stream, line_stream
from chatbot.training.validator import Validation

# Seconds between two lines of metrics, on a terminal and elsewhere. They grow to a sixtieth of the time since the
# start, up to MOST_BETWEEN.
BETWEEN_ON_TERMINAL, BETWEEN, MOST_BETWEEN = 10.0, 60.0, 300.0
SHARE = 1 / 60
# Lines of metrics between two headers.
HEADER_EVERY = 20


class Terminal:
    """Shows a run: metrics and validations as lines on standard output, the bar and warnings on standard error.

    There is no bar where standard error is no terminal, or TERM is "dumb". With --quiet, and on all machines but the
    chief, only warnings are shown. now: the time in seconds.
    """

    def __init__(self, run: Run, now: Callable[[], float] = time.monotonic) -> None:
        self._run, self._now = run, now
        self._shown = run.team.chief and not run.settings.run.quiet
        self._lines, self._errors = line_stream(), error_stream()
        self._speed = Speed(now)
        self._since_line: list[dict[str, Any]] = []  # the records since the last line of metrics
        self._started = self._last_line = now()
        self._rows = 0  # lines of metrics so far
        self._loss: float | None = None
        self._compiling = False
        self._compiled: set[Hashable] = set()
        self._bar: Bar | None = None
        if self._shown and self._errors.redraws_lines:
            self._bar = Bar(self._errors, self._bar_line, run.calendar.last_step, run.progress.step)

    def advance(self) -> None:
        """Count a step."""
        self._speed.advance()
        if self._bar is not None:
            self._bar.update(self._run.progress.step - self._bar.n)

    @contextmanager
    def compiling(self, graph: Hashable) -> Iterator[None]:
        """Show "compiling" in the bar during the first use of a graph, which takes seconds."""
        if graph in self._compiled or self._bar is None:
            yield
            return
        self._compiled.add(graph)
        self._compiling = True
        self._bar.refresh()
        try:
            yield
        finally:
            self._compiling = False

    def warn(self, text: str) -> None:
        """Print a line on standard error, on a terminal several if it is long."""
        tqdm.write(wrapped(f"Warning: {text}.", self._errors.columns), file=self._errors)
        self._errors.flush()

    def record(self, record: dict[str, Any]) -> None:
        """Take the metrics of a logged step, and show them if the last line is old enough."""
        self._speed.remember()
        self._loss = record["loss"]
        self._since_line.append(record)
        now = self._now()
        least = BETWEEN_ON_TERMINAL if self._lines.is_terminal else BETWEEN
        if not self._rows or now - self._last_line >= min(max(least, SHARE * (now - self._started)), MOST_BETWEEN):
            self._show_metrics()

    def validation(self, validation: Validation, best: bool | None) -> None:
        """Show a validation, after `Progress.validated` has recorded it.

        best: whether it is the best so far; None for one that does not count.
        """
        progress = self._run.progress
        nats, value = (validation.values[name] for name in (NATS, progress.best_by))
        measured = f"{progress.step:>{STEP},}  validation {nats:.4f} nats per character"
        short = f"{progress.step:>{STEP},}  validation {nats:.4f}"
        if progress.best_by != NATS and value is not None:
            measured += f", {shown(value, progress.best_by)}"
            short = f"{progress.step:>{STEP},}  {shown(value, progress.best_by)}"
        if best is None:
            verdicts = [", at the end of --time-limit; it does not count", ", does not count"]
        elif not self._run.data.validation_decides:
            verdicts = [""]
        elif best:
            verdicts = [", the best so far", ", best so far"]
        else:
            verdicts = [f", no improvement ({progress.without_best} in a row)", f", {progress.without_best} not better"]
            if progress.best_value is not None:
                so_far = f"; best so far {progress.best_value:.4f} at step {progress.best_step:,}"
                verdicts.insert(0, verdicts[0] + so_far)
        self._print(fitting([*(measured + verdict for verdict in verdicts), short + verdicts[-1]], self._lines.columns))

    def probe(self, samples: Sequence[Sample], replies: Sequence[str]) -> None:
        """Show the questions of --probe with their replies, a line each."""
        if samples and self._run.data.validation is None:  # else below the line of a validation
            self._print(f"step {self._run.progress.step:,}: replies")
        for sample, reply in zip(samples, replies, strict=True):
            self._print(question_line(sample.question, reply, self._lines.columns))

    def went_back(self) -> None:
        """Show the step that the run has gone back to."""
        self._since_line = []
        if self._bar is not None:
            self._bar.n = self._run.progress.step
            self._bar.refresh()

    def close(self) -> None:
        """Show the metrics since the last line, and remove the bar."""
        if self._since_line:
            self._show_metrics()
        if self._bar is not None:
            self._bar.close()

    def _bar_line(self, columns: int) -> str:
        seconds = self._speed.seconds_per_step()
        speed = f"{1 / seconds:.1f} steps/s" if seconds else ""
        status = "compiling" if self._compiling else self._time_left()
        return bar_format(columns, self._loss, self._run.progress.step, self._run.calendar.last_step, speed, status)

    def _time_left(self) -> str:
        patience = self._run.settings.learning.patience if self._run.data.validation_decides else None
        left = steps_left(self._run.progress, self._run.calendar, patience)
        deadline = self._run.settings.run.deadline
        limit = None if deadline is None else max(0.0, deadline - time.time())
        return time_left(left, self._speed.seconds_per_step(), limit, datetime.datetime.now())

    def _show_metrics(self) -> None:
        columns, without_bar = self._lines.columns, self._bar is None
        if self._rows % HEADER_EVERY == 0:
            self._print(header(columns, time_left=without_bar))
        self._print(metrics_line(self._since_line, columns, self._time_left() if without_bar else ""))
        self._rows += 1
        self._last_line = self._now()
        self._since_line = []

    def _print(self, line: str) -> None:
        """Print a line above the bar."""
        if self._shown:
            tqdm.write(line, file=self._lines)
            self._lines.flush()


class Bar(tqdm):
    """A progress bar whose line is made for the present columns each time that it is drawn.

    line: returns it for a number of columns, with {bar} where the bar is drawn.
    """

    def __init__(self, stream: Stream, line: Callable[[int], str], total: int | None, initial: int) -> None:
        self._stream, self._line = stream, line
        super().__init__(total=total, initial=initial, leave=False, file=stream)

    @property
    def format_dict(self) -> dict[str, Any]:
        """The arguments of tqdm's `format_meter`."""
        columns = self._stream.columns or 1
        return {**super().format_dict, "ncols": columns, "bar_format": self._line(columns)}
