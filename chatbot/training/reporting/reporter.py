"""Reports the progress and the results of a training run in the terminal, metrics.jsonl, TensorBoard and wandb."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
from tqdm import tqdm

from chatbot.attempts.checkpoint import better_last_nats
from chatbot.attempts.curves import draw, read_records
from chatbot.attempts.files import METRICS
from chatbot.attempts.settings import stored_values
from chatbot.commands import program
from chatbot.config.attempts import CHECKPOINTS
from chatbot.config.corpus import NONE
from chatbot.config.learning import NATS
from chatbot.config.run import WANDB
from chatbot.config.training import Settings
from chatbot.display import pluralize
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

# Seconds between two printed lines of metrics, on a terminal and elsewhere. In long runs, the interval is a fraction of
# the elapsed time, but at most MAX_INTERVAL.
TERMINAL_INTERVAL = 10.0
INTERVAL = 60.0
MAX_INTERVAL = 300.0
INTERVAL_FRACTION = 1 / 60
# The table of metrics repeats its header after this number of lines.
HEADER_EVERY = 20
# Formats of the progress bar: the first if the number of the last step is known, otherwise the second.
BAR = "{desc}  {bar}  {n_fmt}/{total_fmt}  {rate_fmt}{postfix}"
BAR_WITHOUT_END = "{desc}  step {n_fmt}  {rate_fmt}{postfix}"
# Default environment variables of the Weights & Biases client (https://docs.wandb.ai). With them, it sends no data.
WANDB_DEFAULTS = {"WANDB_MODE": "offline", "WANDB_PROJECT": "chatbot", "WANDB_ERROR_REPORTING": "false"}
# orjson options for the lines of metrics.jsonl.
LINE = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
CURVES = "curves.png"
# Minimum number of records for drawing curves.
MIN_RECORDS = 10


class Reporter:
    """Reports the progress of a run in the terminal, metrics.jsonl, TensorBoard and wandb.

    Results are printed to standard output, and warnings to standard error. If standard error is a terminal, it also
    shows a progress bar. With --quiet, only warnings are printed. If several machines train together, only the chief
    writes files and prints results.

    A background thread writes the files. If writing fails, a warning is printed once, and training continues.
    """

    def __init__(
        self,
        run: Run,
        towers: Sequence[str],
        status: Callable[[], str] = lambda: "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the progress bar and the files.

        Args:
            run: The training run.
            towers: The names of the towers of all machines.
            status: A function that returns a text to show at the end of the progress bar.
            now: Clock that returns the time in seconds.
        """
        settings = run.settings.run
        step = run.progress.recorded_step
        last = run.calendar.last_step
        self._run = run
        self._status = status
        self._now = now
        self._writer = ThreadPoolExecutor(1, "report")
        self.stopped = ""  # the reason why the run ended, for messages
        self._failing: set[str] = set()  # names of the outputs whose last write failed
        self._print_enabled = run.team.chief and not settings.quiet
        self._lines = line_stream()
        self._errors = error_stream()
        self._since_line: list[dict[str, Any]] = []  # records since the last printed line of metrics
        self._started = self._last_line = now()
        self._rows = 0  # number of printed lines of metrics
        self._steps = 0  # number of steps since this process started
        self._first: tuple[float, int] | None = None  # time and step count of the first record
        with_bar = self._print_enabled and self._errors.is_terminal and os.environ.get("TERM") != "dumb"
        self._bar = tqdm(
            desc="compiling",  # shown until the first record
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
            if settings.report_to == WANDB:  # wandb only uploads TensorBoard files that are opened after its start
                try:
                    self._wandb = start_client(run.settings)
                except Exception as error:  # wandb can raise any exception
                    self._print_warning(f"wandb cannot be started ({_reason(error)}); training continues without it")
            if settings.report_to != NONE:
                self._tensorboard = TensorBoard(settings.attempt, towers, step)

    def advance(self) -> None:
        """Count a training step on the progress bar."""
        self._steps += 1
        self._bar.update(self._run.progress.step - self._bar.n)

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a step, and print a line of metrics if enough time has passed since the last one."""
        now = self._now()
        self._first = self._first or (now, self._steps)  # earlier steps do not count, since they are slow
        self._since_line.append(record)
        self._bar.set_description_str(f"loss {record['loss']:.4f}", refresh=False)
        self._bar.set_postfix_str(", ".join(filter(None, (self._time_left(), self._status()))), refresh=False)
        min_interval = TERMINAL_INTERVAL if self._lines.is_terminal else INTERVAL
        if not self._rows or now - self._last_line >= min(
            max(min_interval, INTERVAL_FRACTION * (now - self._started)), MAX_INTERVAL
        ):
            self._print_metrics()
        if self._run.team.chief:
            self._writer.submit(self._try, "metrics.jsonl", append_record, self._metrics, record)
        self._write_tensorboard(TensorBoard.record, record)

    def validation(self, validation: Validation, best: bool | None) -> None:
        """Print the result of a validation and write it to TensorBoard.

        Args:
            validation: The result.
            best: Whether the result is the best so far. If None, the result is only printed.
        """
        progress = self._run.progress
        data = self._run.data
        line = f"{progress.step:>{STEP},}  validation {validation.values[NATS]:.4f} nats per character"
        value = validation.values[progress.best_by]
        if progress.best_by != NATS and value is not None:
            line += f", {value_text(value, progress.best_by)}"
        if best is None:
            is_better = better_last_nats(self._run.settings.run.directory) is not None
            use = "chat uses this checkpoint" if is_better else "it does not count"
            line += f", at the end of --time-limit; {use}"
        elif best:
            line += ", the best so far"
        elif data.validation_decides:
            line += f", no improvement ({progress.without_best} in a row)"
        self._print(line)
        self._print_probe(validation.replies)
        if best is not None:
            self._write_tensorboard(TensorBoard.replies, data.questions, validation.replies, progress.step)
            if validation.warning:
                self.warn(validation.warning)

    def replies(self, replies: Sequence[str]) -> None:
        """Print the replies to the sample questions and write them to TensorBoard.

        This is used only in runs without validation.
        """
        step = self._run.progress.step
        self._print(f"step {step:,}: replies")
        self._print_probe(replies)
        self._write_tensorboard(TensorBoard.replies, self._run.data.questions, replies, step)

    def warn(self, text: str) -> None:
        """Print a warning and write it to TensorBoard. The text must not end with a full stop."""
        self._print_warning(text)
        self._write_tensorboard(TensorBoard.warning, text, self._run.progress.step)

    def rewind(self) -> None:
        """Drop the records of later steps, after training has returned to an earlier checkpoint."""
        step = self._run.progress.recorded_step
        self._since_line = []
        self._bar.update(self._run.progress.step - self._bar.n)
        if self._run.team.chief:
            self._writer.submit(self._try, "metrics.jsonl", drop_after, self._metrics, step)
        self._write_tensorboard(TensorBoard.begin_after, step)

    def flush(self) -> None:
        """Wait until all pending records are written."""
        self._writer.submit(int).result()

    def close(self) -> None:
        """Print the remaining metrics, remove the progress bar and close the files."""
        if self._since_line:
            self._print_metrics()
        self._bar.close()
        self._write_tensorboard(TensorBoard.close)
        if self._wandb:
            self._writer.submit(self._try, "wandb", self._wandb.finish, 0 if self.stopped else 1)
        self._writer.shutdown()

    def _print(self, line: str) -> None:
        """Print a line above the progress bar."""
        if self._print_enabled:
            tqdm.write(line, file=self._lines)
            self._lines.flush()

    def _print_warning(self, text: str) -> None:
        tqdm.write(f"Warning: {text}.", file=self._errors)
        self._errors.flush()

    def _print_metrics(self) -> None:
        if self._rows % HEADER_EVERY == 0:
            self._print(HEADER)
        # If there is a progress bar, it already shows the time left.
        self._print(metrics_line(self._since_line, self._time_left() if self._bar.disable else ""))
        self._rows += 1
        self._last_line = self._now()
        self._since_line = []

    def _time_left(self) -> str:
        """Estimate the time left from the mean time per step; "" before the second record."""
        if self._first is None or self._steps == self._first[1]:
            return ""
        first_time, first_steps = self._first
        return time_left(self._run, (self._now() - first_time) / (self._steps - first_steps))

    def _print_probe(self, replies: Sequence[str]) -> None:
        """Print the replies to the --probe questions, which are the last replies in the list."""
        data = self._run.data
        for sample, reply in zip(data.probe, replies[len(data.samples) :], strict=True):
            self._print(question_line(sample.question, reply))

    def _write_tensorboard(self, write: Callable[..., None], *arguments: Any) -> None:
        """Queue a call to a method of `TensorBoard`, if TensorBoard is enabled."""
        if self._tensorboard:
            self._writer.submit(self._try, "TensorBoard", write, self._tensorboard, *arguments)

    def _try(self, name: str, write: Callable[..., object], *arguments: Any) -> None:
        """Call a function that writes to an output. If it fails repeatedly, only the first failure causes a warning."""
        try:
            write(*arguments)
        except Exception as error:  # wandb can raise any exception
            if name not in self._failing:
                self._failing.add(name)
                retry = "training continues, and writing is retried"
                self._print_warning(f"{name} cannot be written ({_reason(error)}); {retry}")
        else:
            self._failing.discard(name)


def _reason(error: Exception) -> str:
    """Return the first line of an error message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:150]


def append_record(path: Path, record: dict[str, Any]) -> None:
    """Append a record to metrics.jsonl as a line of JSON. NaN and infinity become null.

    If writing fails, the partial line is removed, and OSError is raised.
    """
    line = orjson.dumps(record, option=LINE)
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            written = file.write(line)
            if written < len(line):  # the disk is full, and writing the rest raises OSError
                file.write(line[written:])
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def drop_after(path: Path, step: int) -> None:
    """Remove the records of later steps from metrics.jsonl, because a resumed run repeats these steps."""
    if path.exists():
        earlier = (record for record in read_records(path) if record["step"] <= step)
        write_file(path, b"".join(orjson.dumps(record, option=LINE) for record in earlier))


def start_client(settings: Settings) -> Any:
    """Start a wandb run, which uploads the content of all TensorBoard files that are opened later."""
    for name, value in WANDB_DEFAULTS.items():
        os.environ.setdefault(name, value)
    import wandb

    attempt = settings.run.attempt
    # wandb does not record the console output, because this includes the progress bar.
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
    return wandb.init(
        name=attempt, group=attempt, config=stored_values(settings), sync_tensorboard=True, settings=quiet
    )


def conclude(run: Run, stop: str, first_step: int, seconds: float, replies: Sequence[str]) -> None:
    """Print why the run ended. On the chief, also draw curves.png and print sample replies and a summary.

    Args:
        run: The training run.
        stop: The reason why the run ended.
        first_step: The step at which this process started.
        seconds: The duration of training in this process.
        replies: The replies to the sample and --probe questions; empty after an interrupt.
    """
    attempt = run.settings.run.attempt
    progress = run.progress
    stopped = f"Stopped at step {progress.step:,}: {stop}."
    if not run.team.chief or not progress.step:
        print(stopped if progress.step else f"{stopped} Nothing was saved; the same command starts again.")
        return
    lines = [stopped]
    if replies:
        pairs = zip(run.data.questions, replies, strict=True)
        lines += ["Sample replies:", *(question_line(sample.question, reply) for sample, reply in pairs)]
    lines.append(f"Time: {duration(seconds)} for {pluralize(max(0, progress.step - first_step), 'step')}")
    lines.append(f"Best: {_best(run)}")
    if _draw_curves(run):
        lines.append(f"Picture: {CHECKPOINTS / attempt / CURVES}")
    if run.settings.run.report_to != NONE:
        lines.append(f"Curves: tensorboard --logdir tensorboard/{attempt}")
    chat = f"{program('chat')} --attempt {attempt}"
    resumes = f"Saved. The same command resumes from here; to talk to it: {chat}"
    lines.append(resumes if stop == INTERRUPTED else f"Talk to it: {chat}")
    print_lines(lines)


def _best(run: Run) -> str:
    """Describe the best checkpoint by its value, step and folder."""
    progress = run.progress
    folder = CHECKPOINTS / run.settings.run.attempt
    if (at_end := better_last_nats(run.settings.run.directory)) is not None:
        return f"{value_text(at_end, NATS)} at step {progress.step:,}, the last, in {folder}"
    if progress.best_value is None:
        return f"the last checkpoint, of step {progress.step:,}, in {folder}"
    return f"{value_text(progress.best_value, progress.best_by)} at step {progress.best_step:,}, in {folder}"


def _draw_curves(run: Run) -> bool:
    """Draw the learning curves and return whether this succeeded. Failures only cause a warning."""
    directory = run.settings.run.directory
    try:
        records = read_records(directory / METRICS)
        if len(records) >= MIN_RECORDS:
            draw([(run.settings.run.attempt, records)], directory / CURVES)
            return True
    except Exception as error:  # Matplotlib can raise any exception
        error_stream().write(f"Warning: {CURVES} cannot be drawn ({_reason(error)}).\n")
    return False
