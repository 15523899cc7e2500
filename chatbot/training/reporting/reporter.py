"""What a run says while it trains and at its end: on the terminal, in metrics.jsonl, to TensorBoard and to wandb."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
from tqdm import tqdm

from chatbot.attempts.checkpoint import better_last
from chatbot.attempts.curves import draw, read_records
from chatbot.attempts.files import METRICS
from chatbot.attempts.settings import storable
from chatbot.commands import program
from chatbot.config.attempts import CHECKPOINTS
from chatbot.config.corpus import NONE
from chatbot.config.learning import NATS
from chatbot.config.run import WANDB
from chatbot.config.training import Settings
from chatbot.display import counted
from chatbot.durable import write_file
from chatbot.training.checkpoints.progress import value_text
from chatbot.training.reporting.tensorboard import TensorBoard
from chatbot.training.reporting.terminal import (
    HEADER,
    STEP,
    duration,
    error_stream,
    line_stream,
    metrics_line,
    print_lines,
    question_line,
    time_left,
)
from chatbot.training.result import INTERRUPTED
from chatbot.training.run import Run
from chatbot.training.validation import Validation

# Seconds between two lines of metrics, on a terminal and elsewhere. They grow to a sixtieth of the time since the
# start, up to MOST_BETWEEN.
BETWEEN_ON_TERMINAL = 10.0
BETWEEN = 60.0
MOST_BETWEEN = 300.0
SHARE = 1 / 60
# Lines of metrics between two headers.
HEADER_EVERY = 20
# The bar of a run with a last step, and of one without.
BAR = "{desc}  {bar}  {n_fmt}/{total_fmt}  {rate_fmt}{postfix}"
BAR_WITHOUT_END = "{desc}  step {n_fmt}  {rate_fmt}{postfix}"
# Of the client of Weights & Biases (https://docs.wandb.ai): without these variables in the environment, nothing leaves
# this machine.
WANDB_DEFAULTS = {"WANDB_MODE": "offline", "WANDB_PROJECT": "chatbot", "WANDB_ERROR_REPORTING": "false"}
# How a record becomes a line of metrics.jsonl.
LINE = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
CURVES = "curves.png"
# With fewer records, a curve shows nothing.
FEWEST_RECORDS = 20


class Reporter:
    """Passes what happens in a run to the terminal, and on the chief to metrics.jsonl, TensorBoard and wandb.

    Metrics and validations are lines on standard output, the bar and warnings are on standard error. There is no bar
    where that is no terminal, or TERM is "dumb". With --quiet, and on all machines but the chief, only warnings are
    shown. A thread writes the files, in order. Training goes on when one cannot be written: a warning says so once, and
    the next record is tried again.
    """

    def __init__(self, run: Run, towers: Sequence[str], now: Callable[[], float] = time.monotonic) -> None:
        """towers: the names of the towers of all machines. now: the time in seconds."""
        settings = run.settings.run
        step = run.progress.recorded_step
        last = run.calendar.last_step
        self._run = run
        self._now = now
        self._writer = ThreadPoolExecutor(1, "report")
        self.stopped = ""  # the reason of the end of the run, in words
        self._failing: set[str] = set()  # what could not be written at the last attempt
        self._prints = run.team.chief and not settings.quiet
        self._lines, self._errors = line_stream(), error_stream()
        self._since_line: list[dict[str, Any]] = []  # the records since the last line of metrics
        self._started = self._last_line = now()
        self._rows = 0  # lines of metrics so far
        self._steps = 0  # of this process
        self._first: tuple[float, int] | None = None  # the time of the first record, and the steps until then
        with_bar = self._prints and self._errors.is_terminal and os.environ.get("TERM") != "dumb"
        self._bar = tqdm(
            desc="compiling",  # until the first record
            total=last,
            initial=run.progress.step,
            leave=False,
            file=self._errors,
            disable=not with_bar,
            dynamic_ncols=True,
            unit=" steps",
            bar_format=BAR_WITHOUT_END if last is None else BAR,
        )
        self._metrics = settings.directory / METRICS
        self._wandb: Any = None
        self._tensorboard: TensorBoard | None = None
        if run.team.chief:
            drop_after(self._metrics, step)
            if settings.report_to == WANDB:  # it follows the files that TensorBoard opens
                try:
                    self._wandb = start_client(run.settings)
                except Exception as error:  # the client may raise any
                    self._print_warning(f"wandb cannot be started ({_reason(error)}); training goes on without it")
            if settings.report_to != NONE:
                self._tensorboard = TensorBoard(settings.attempt, towers, step)

    def advance(self) -> None:
        """Count a step."""
        self._steps += 1
        self._bar.update(self._run.progress.step - self._bar.n)

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a logged step, and show them if the last line is old enough."""
        now = self._now()
        self._first = self._first or (now, self._steps)  # the graphs are traced before it
        self._since_line.append(record)
        self._bar.set_description_str(f"loss {record['loss']:.4f}", refresh=False)
        self._bar.set_postfix_str(self._time_left(), refresh=False)
        least = BETWEEN_ON_TERMINAL if self._lines.is_terminal else BETWEEN
        if not self._rows or now - self._last_line >= min(max(least, SHARE * (now - self._started)), MOST_BETWEEN):
            self._print_metrics()
        if self._run.team.chief:
            self._writer.submit(self._try, "metrics.jsonl", append_record, self._metrics, record)
        self._chart(TensorBoard.record, record)

    def validation(self, validation: Validation, best: bool | None) -> None:
        """Show and write a validation. best: whether it is the best so far; None if it does not count, and is not
        written."""
        progress = self._run.progress
        data = self._run.data
        line = f"{progress.step:>{STEP},}  validation {validation.values[NATS]:.4f} nats per character"
        value = validation.values[progress.best_by]
        if progress.best_by != NATS and value is not None:
            line += f", {value_text(value, progress.best_by)}"
        if best is None:
            is_better = better_last(self._run.settings.run.directory) is not None
            use = "chat uses this checkpoint" if is_better else "it does not count"
            line += f", at the end of --time-limit; {use}"
        elif best:
            line += ", the best so far"
        elif data.validation_decides:
            line += f", no improvement ({progress.without_best} in a row)"
        self._print(line)
        self._print_probe(validation.replies)
        if best is not None:
            self._chart(TensorBoard.replies, data.questions, validation.replies, progress.step)
            if validation.warning:
                self.warn(validation.warning)

    def replies(self, replies: Sequence[str]) -> None:
        """Show and write the replies to `Data.questions` where nothing is validated."""
        step = self._run.progress.step
        self._print(f"step {step:,}: replies")
        self._print_probe(replies)
        self._chart(TensorBoard.replies, self._run.data.questions, replies, step)

    def warn(self, text: str) -> None:
        """Show and write a warning, without a full stop at its end."""
        self._print_warning(text)
        self._chart(TensorBoard.warning, text, self._run.progress.step)

    def went_back(self) -> None:
        """Begin again at the step of the run, which is earlier than the last record's, after which nothing counts."""
        step = self._run.progress.recorded_step
        self._since_line = []
        self._bar.update(self._run.progress.step - self._bar.n)
        if self._run.team.chief:
            self._writer.submit(self._try, "metrics.jsonl", drop_after, self._metrics, step)
        self._chart(TensorBoard.begin_after, step)

    def flush(self) -> None:
        """Wait until all that was passed on is written."""
        self._writer.submit(int).result()

    def close(self) -> None:
        """Show the metrics since the last line, remove the bar, and close the files when all is written."""
        if self._since_line:
            self._print_metrics()
        self._bar.close()
        self._chart(TensorBoard.close)
        if self._wandb:
            self._writer.submit(self._try, "wandb", self._wandb.finish, 0 if self.stopped else 1)
        self._writer.shutdown()

    def _print(self, line: str) -> None:
        """Print a line above the bar."""
        if self._prints:
            tqdm.write(line, file=self._lines)
            self._lines.flush()

    def _print_warning(self, text: str) -> None:
        tqdm.write(f"Warning: {text}.", file=self._errors)
        self._errors.flush()

    def _print_metrics(self) -> None:
        if self._rows % HEADER_EVERY == 0:
            self._print(HEADER)
        # A terminal with a bar shows the time left there.
        self._print(metrics_line(self._since_line, self._time_left() if self._bar.disable else ""))
        self._rows += 1
        self._last_line = self._now()
        self._since_line = []

    def _time_left(self) -> str:
        """Return the time left, by the mean time of the steps of this process; "" before two records."""
        if self._first is None or self._steps == self._first[1]:
            return ""
        began, before = self._first
        return time_left(self._run, (self._now() - began) / (self._steps - before))

    def _print_probe(self, replies: Sequence[str]) -> None:
        """Print the questions of --probe. replies: to `Data.questions`, of which they are the last ones."""
        data = self._run.data
        for sample, reply in zip(data.probe, replies[len(data.samples) :], strict=True):
            self._print(question_line(sample.question, reply))

    def _chart(self, write: Callable[..., None], *arguments: Any) -> None:
        """Write to TensorBoard if the run has it. write: a method of `TensorBoard`."""
        if self._tensorboard:
            self._writer.submit(self._try, "TensorBoard", write, self._tensorboard, *arguments)

    def _try(self, name: str, write: Callable[..., object], *arguments: Any) -> None:
        """Write; if that fails, warn once until it works again."""
        try:
            write(*arguments)
        except Exception as error:  # wandb may raise any
            if name not in self._failing:
                self._failing.add(name)
                again = "training goes on, and writing is tried again"
                self._print_warning(f"{name} cannot be written ({_reason(error)}); {again}")
        else:
            self._failing.discard(name)


def _reason(error: Exception) -> str:
    """Return the first line of a message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:150]


def append_record(path: Path, record: dict[str, Any]) -> None:
    """Append a record to metrics.jsonl as a line of JSON, in which NaN and infinity are null.

    Raises OSError; the file then ends with a complete line, unless it is gone.
    """
    line = orjson.dumps(record, option=LINE)
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            written = file.write(line)
            if written < len(line):  # the disk became full
                file.write(line[written:])
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def drop_after(path: Path, step: int) -> None:
    """Keep the records of metrics.jsonl up to this step: a killed run repeats the steps since its checkpoint."""
    if path.exists():
        kept = (record for record in read_records(path) if record["step"] <= step)
        write_file(path, b"".join(orjson.dumps(record, option=LINE) for record in kept))


def start_client(settings: Settings) -> Any:
    """Start a run of wandb for this start of the attempt. It follows the event files that are opened later."""
    for name, value in WANDB_DEFAULTS.items():
        os.environ.setdefault(name, value)
    import wandb

    attempt = settings.run.attempt
    # The progress bar is no log.
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
    return wandb.init(name=attempt, group=attempt, config=storable(settings), sync_tensorboard=True, settings=quiet)


def conclude(run: Run, stop: str, first_step: int, seconds: float, replies: Sequence[str]) -> None:
    """Print why the run ended, on the chief also replies, a summary and the next command. Draws curves.png.

    replies: to the samples and to the questions of --probe; none after an interrupt.
    """
    attempt = run.settings.run.attempt
    progress = run.progress
    stopped = f"Stopped at step {progress.step:,}: {stop}."
    if not run.team.chief or not progress.step:
        print(stopped if progress.step else f"{stopped} Nothing was saved; the same command begins again.")
        return
    lines = [stopped]
    if replies:
        pairs = zip(run.data.questions, replies, strict=True)
        lines += ["Sample replies:", *(question_line(sample.question, reply) for sample, reply in pairs)]
    lines.append(f"Time: {duration(seconds)} for {counted(max(0, progress.step - first_step), 'step')}")
    lines.append(f"Best: {_best(run)}")
    if _drawn(run):
        lines.append(f"Picture: {CHECKPOINTS / attempt / CURVES}")
    if run.settings.run.report_to != NONE:
        lines.append(f"Curves: tensorboard --logdir tensorboard/{attempt}")
    chat = f"{program('chat')} --attempt {attempt}"
    resumes = f"Saved. The same command resumes from here; to talk to it: {chat}"
    lines.append(resumes if stop == INTERRUPTED else f"Talk to it: {chat}")
    print_lines(lines)


def _best(run: Run) -> str:
    """Return which checkpoint is the best, and where it is."""
    progress = run.progress
    folder = CHECKPOINTS / run.settings.run.attempt
    if (at_end := better_last(run.settings.run.directory)) is not None:
        return f"{value_text(at_end, NATS)} at step {progress.step:,}, the last, in {folder}"
    if progress.best_value is None:
        return f"the last checkpoint, of step {progress.step:,}, in {folder}"
    return f"{value_text(progress.best_value, progress.best_by)} at step {progress.best_step:,}, in {folder}"


def _drawn(run: Run) -> bool:
    """Draw the learning curves. A failure is a warning: the run is saved."""
    directory = run.settings.run.directory
    try:
        records = read_records(directory / METRICS)
        if len(records) >= FEWEST_RECORDS:
            draw([(run.settings.run.attempt, records)], directory / CURVES)
            return True
    except Exception as error:  # of a drawing library: fonts, files, memory
        error_stream().write(f"Warning: {CURVES} cannot be drawn ({_reason(error)}).\n")
    return False
