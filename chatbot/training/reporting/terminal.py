"""What a run shows: on a terminal a progress bar with lines above it, elsewhere plain lines."""

import collections
import datetime
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tqdm import tqdm

from chatbot.config.learning import NATS
from chatbot.corpus.reading.display import cut, width
from chatbot.evaluation.measures import Sample
from chatbot.training.checkpoints.progress import Progress, shown
from chatbot.training.display import Stream, clock, duration, error_stream, fitting, line_stream, question_line, wrapped
from chatbot.training.run import Run
from chatbot.training.schedule import LEAST_STEPS, Calendar
from chatbot.training.validation import Validation

# Seconds between two lines of metrics, on a terminal and elsewhere. They grow to a sixtieth of the time since the
# start, up to MOST_BETWEEN.
BETWEEN_ON_TERMINAL, BETWEEN, MOST_BETWEEN = 10.0, 60.0, 300.0
SHARE = 1 / 60
# Lines of metrics between two headers.
HEADER_EVERY = 20
# Columns of the number of a step, at the beginning of a line, and of the smallest progress bar that is shown.
STEP, SMALLEST_BAR = 7, 10
# Seconds between two times that the speed remembers, and how long it remembers them.
BETWEEN_TIMES, REMEMBERED = 10.0, 3600.0


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
        disable = not (self._shown and self._errors.redraws_lines)
        self._bar = Bar(self._errors, self._bar_line, run.calendar.last_step, run.progress.step, disable)

    def advance(self) -> None:
        """Count a step."""
        self._speed.advance()
        self._bar.update(self._run.progress.step - self._bar.n)

    @contextmanager
    def compiling(self, graph: Hashable) -> Iterator[None]:
        """Show "compiling" in the bar during the first use of a graph, which takes seconds."""
        if graph in self._compiled:
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
        """Show a validation. best: whether it is the best so far; None for one that does not count."""
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
        self._bar.n = self._run.progress.step
        self._bar.refresh()

    def close(self) -> None:
        """Show the metrics since the last line, and remove the bar."""
        if self._since_line:
            self._show_metrics()
        self._bar.close()

    def _bar_line(self, columns: int) -> str:
        seconds = self._speed.seconds_per_step()
        speed = f"{1 / seconds:.1f} steps/s" if seconds else ""
        status = "compiling" if self._compiling else self._time_left()
        return bar_format(columns, self._loss, self._run.progress.step, self._run.calendar.last_step, speed, status)

    def _time_left(self) -> str:
        patience = self._run.settings.learning.patience if self._run.data.validation_decides else None
        left = steps_left(self._run.progress, self._run.calendar, patience)
        return time_left(left, self._speed.seconds_per_step(), self._run.seconds_left, datetime.datetime.now())

    def _show_metrics(self) -> None:
        columns, without_bar = self._lines.columns, bool(self._bar.disable)
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
    """A progress bar whose line, with {bar} in it, is made for the present columns each time that it is drawn."""

    def __init__(
        self, stream: Stream, line: Callable[[int], str], total: int | None, initial: int, disable: bool
    ) -> None:
        self._stream, self._line = stream, line
        super().__init__(total=total, initial=initial, leave=False, file=stream, disable=disable)

    @property
    def format_dict(self) -> dict[str, Any]:
        """The arguments of tqdm's `format_meter`."""
        columns = self._stream.columns or 1
        return {**super().format_dict, "ncols": columns, "bar_format": self._line(columns)}


class Column(NamedTuple):
    """A column of the table of metrics."""

    title: str
    key: str  # in a record
    columns: int
    shown: Callable[[float], str]


METRICS = (
    Column("loss", "loss", 9, "{:.4f}".format),
    Column("tokens/s", "target_tokens_per_s", 10, "{:,.0f}".format),
    Column("wait", "input_wait", 6, "{:.0%}".format),
    Column("norm", "gradient_norm", 9, "{:.3f}".format),
    Column("rate", "learning_rate", 10, "{:.3g}".format),
)


def header(columns: int | None, time_left: bool) -> str:
    """Return the titles of the table of metrics. time_left: whether it has the column of the time left."""
    cells = [f"{'step':>{STEP}}", *(f"{column.title:>{column.columns}}" for column in METRICS)]
    return _as_fits([*cells, "  time left, end"] if time_left else cells, columns)


def metrics_line(records: Sequence[dict[str, Any]], columns: int | None, time_left: str = "") -> str:
    """Return a row of the table: the last step, means over the records, the time left; only columns that fit."""
    cells = [f"{records[-1]['step']:>{STEP},}"]
    for column in METRICS:
        values = [value for record in records if (value := record.get(column.key)) is not None]
        finite = [value for value in values if math.isfinite(value)]
        cells.append(f"{column.shown(statistics.fmean(finite)) if finite else '-':>{column.columns}}")
    return _as_fits([*cells, f"  {time_left}"] if time_left else cells, columns)


def _as_fits(cells: Sequence[str], columns: int | None) -> str:
    line = cells[0]
    for cell in cells[1:]:
        if columns is not None and width(line + cell) > columns:
            break
        line += cell
    return line


def bar_format(columns: int, loss: float | None, step: int, last_step: int | None, speed: str, status: str) -> str:
    """Return the line of the progress bar, with {bar} where the bar is drawn.

    speed: such as "7.2 steps/s". status: the time left, or what takes long at the moment. Both may be "".
    """
    count = f"step {step:,}" if last_step is None else f"{step:,}/{last_step:,}"
    pieces = ["" if loss is None else f"loss {loss:.4f}", count, speed, status]
    for left_out in ((), (2,), (1, 2)):
        kept = [piece for number, piece in enumerate(pieces) if piece and number not in left_out]
        if width("  ".join(kept)) <= columns:
            break
    line = cut("  ".join(kept), columns)
    if last_step is None or columns - width(line) - 2 < SMALLEST_BAR:
        return line
    return "  ".join(["{bar}", *kept] if loss is None else [kept[0], "{bar}", *kept[1:]])


class StepsLeft(NamedTuple):
    """The number of steps until a run ends, or a bound of it."""

    steps: int
    bound: str = ""  # "at least" or "at most" if validation may end the run at another step


class Speed:
    """The seconds that a step takes, with its share of validations and checkpoints, over the last hour."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._steps = now, 0
        self._times: collections.deque[tuple[float, int]] = collections.deque()  # times, and the steps until then

    def advance(self) -> None:
        """Count a step."""
        self._steps += 1

    def remember(self) -> None:
        """Remember the present time. The first call comes after the step that has traced the graphs."""
        now = self._now()
        if not self._times or now - self._times[-1][0] >= BETWEEN_TIMES:
            self._times.append((now, self._steps))
        while len(self._times) > 1 and now - self._times[1][0] >= REMEMBERED:
            self._times.popleft()

    def seconds_per_step(self) -> float | None:
        """Return the mean time of a step, None before two steps."""
        if not self._times or self._steps == self._times[0][1]:
            return None
        began, before = self._times[0]
        return (self._now() - began) / (self._steps - before)


def steps_left(progress: Progress, calendar: Calendar, patience: int | None) -> StepsLeft:
    """Return the steps until the run ends.

    patience: the validations without a new best that end it; None if validation does not. How many bests are still to
    come is not known: without a last step, the earliest end is all that can be said.
    """
    last, every = calendar.last_step, calendar.validate_every
    if patience is None or every is None:
        assert last is not None, "without validation there is a last step"
        return StepsLeft(max(0, last - progress.step))
    validations = max(1, patience - progress.without_best)
    earliest = max((progress.step // every + validations) * every, LEAST_STEPS)
    if last is None:
        return StepsLeft(earliest - progress.step, "at least")
    return StepsLeft(max(0, last - progress.step), "at most" if earliest < last else "")


def time_left(left: StepsLeft, seconds_per_step: float | None, limit: float | None, now: datetime.datetime) -> str:
    """Return such as "at most 3 h 20 min left, Mon 14:05"; "" if not known. limit: the seconds of --time-limit left."""
    if not left.steps or (seconds_per_step is None and limit is None):
        return ""
    known = seconds_per_step is not None
    seconds, bound = left.steps * (seconds_per_step or 0.0), left.bound
    if limit is not None and (not known or limit <= seconds):
        # Nothing else ends the run before its limit if the earliest other end is later.
        seconds, bound = limit, "" if known and bound != "at most" else "at most"
    return f"{bound} {duration(seconds)} left, {clock(seconds, now)}".lstrip()
