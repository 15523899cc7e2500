"""The output of a run while it trains and at its end, on the chief only."""

from collections.abc import Callable
from typing import Any

from chatbot.command_line import program
from chatbot.config.attempts import CHECKPOINTS, is_validated
from chatbot.config.corpus import NONE
from chatbot.config.learning import NATS
from chatbot.config.run import WANDB
from chatbot.display import counted
from chatbot.evaluation.curves import METRICS, draw, read_records
from chatbot.model.checkpoint import better_last
from chatbot.training.alarms import SlowTowers, TowerOutliers
from chatbot.training.attempt import INTERRUPTED
from chatbot.training.checkpoints.progress import shown
from chatbot.training.display import duration, error_stream, line_stream, question_line
from chatbot.training.reporting.metrics import append_record, drop_after, start_client
from chatbot.training.reporting.tensorboard import TensorBoard
from chatbot.training.reporting.terminal import Terminal
from chatbot.training.run import Run
from chatbot.training.validation import Validation

CURVES = "curves.png"
# With fewer records, a curve shows nothing.
FEWEST_RECORDS = 20


class Reporter:
    """Passes what happens in a run to the terminal, to metrics.jsonl and to TensorBoard.

    Training goes on when one cannot write: a warning says so once, and the next record is tried again.
    """

    def __init__(self, run: Run, towers: list[str]) -> None:
        """towers: the names of the towers of all machines."""
        self._run = run
        self.stopped = ""  # the reason of the end of the run, in words
        self._failing: set[str] = set()  # what could not be written at the last attempt
        self._outliers, self._slow_towers = TowerOutliers(towers), SlowTowers(towers)
        self._terminal = Terminal(run)
        self.advance = self._terminal.advance
        self._wandb = self._start_wandb()
        self._tensorboard: TensorBoard | None = None
        if run.team.chief:
            drop_after(run.settings.run.directory / METRICS, run.progress.step)
            if run.settings.run.report_to != NONE:
                self._tensorboard = TensorBoard(run.settings.run.attempt, towers, run.progress.step)

    def _start_wandb(self) -> Any:
        """Return the run of wandb; None without, and after a warning if it cannot be started."""
        settings = self._run.settings
        if settings.run.report_to != WANDB or not self._run.team.chief:
            return None
        try:
            return start_client(settings)
        except Exception as error:  # the client may raise any
            self._terminal.warn(f"wandb cannot be started ({_reason(error)}); training goes on without it")
            return None

    def warn(self, text: str) -> None:
        """Show a warning, without a full stop at its end."""
        self._terminal.warn(text)
        if self._tensorboard:
            self._try("TensorBoard", self._tensorboard.warning, text, self._run.progress.step)

    def record(self, record: dict[str, Any]) -> None:
        """Show and write the metrics of a logged step."""
        self._terminal.record(record)
        if not self._run.team.chief:
            return
        self._try("metrics.jsonl", append_record, self._run.settings.run.directory / METRICS, record)
        if self._tensorboard:
            self._try("TensorBoard", self._tensorboard.record, record)
        outliers = self._outliers.record(record["step"], record["tower_losses"])
        for warning in (*outliers, *self._slow_towers.record(record.get("tower_seconds", ()))):
            self.warn(warning)

    def validation(self, validation: Validation, best: bool | None) -> None:
        """Show and write a validation. best: whether it is the best so far; None if it does not count, and is not
        written."""
        self._terminal.validation(validation, best)
        self._show_replies(validation.replies, is_written=best is not None)
        if best is not None and validation.warning:
            self.warn(validation.warning)

    def probe(self, replies: list[str]) -> None:
        """Show and write the replies to `Data.shown` where nothing is validated."""
        self._show_replies(replies, is_written=True)

    def _show_replies(self, replies: list[str], is_written: bool) -> None:
        data = self._run.data
        self._terminal.probe(data.probe, replies[len(data.samples) :])
        if self._tensorboard and is_written:
            self._try("TensorBoard", self._tensorboard.replies, data.shown, replies, self._run.progress.step)

    def went_back(self) -> None:
        """Begin again at the step of the run, which is earlier than the last record's, after which nothing counts."""
        self._terminal.went_back()
        if self._run.team.chief:
            drop_after(self._run.settings.run.directory / METRICS, self._run.progress.step)
        if self._tensorboard:
            self._try("TensorBoard", self._tensorboard.begin_after, self._run.progress.step)

    def close(self) -> None:
        """Close the bar and the files."""
        self._terminal.close()
        if self._tensorboard:
            self._try("TensorBoard", self._tensorboard.close)
        if self._wandb:
            self._try("wandb", self._wandb.finish, 0 if self.stopped else 1)

    def _try(self, name: str, write: Callable[..., object], *arguments: Any) -> None:
        """Write; if that fails, warn once until it works again."""
        try:
            write(*arguments)
        except Exception as error:  # wandb may raise any
            if name not in self._failing:
                self._failing.add(name)
                again = "training goes on, and writing is tried again"
                self._terminal.warn(f"{name} cannot be written ({_reason(error)}); {again}")
        else:
            self._failing.discard(name)


def _reason(error: Exception) -> str:
    """Return the first line of a message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:150]


def conclude(run: Run, stop: str, first_step: int, seconds: float) -> None:
    """Print why the run ended, on the chief also replies, a summary and the next command. Draws curves.png."""
    attempt, progress, output = run.settings.run.attempt, run.progress, line_stream()
    stopped = f"Stopped at step {progress.step:,}: {stop}."
    if not run.team.chief or not progress.step:
        print(stopped if progress.step else f"{stopped} Nothing was saved; the same command begins again.")
        return
    lines = [stopped]
    if stop != INTERRUPTED:
        lines += ["Sample replies:", *_replies(run)]
    lines.append(f"Time: {duration(seconds)} for {counted(max(0, progress.step - first_step), 'step')}")
    lines.append(f"Best: {_best(run)}")
    if _drawn(run):
        lines.append(f"Picture: {CHECKPOINTS / attempt / CURVES}")
    if run.settings.run.report_to != NONE:
        lines.append(f"Curves: tensorboard --logdir tensorboard/{attempt}")
    chat = f"{program('chat')} --attempt {attempt}"
    resumes = f"Saved. The same command resumes from here; to talk to it: {chat}"
    lines.append(resumes if stop == INTERRUPTED else f"Talk to it: {chat}")
    output.write("".join(f"{line}\n" for line in lines))
    output.flush()


def _replies(run: Run) -> list[str]:
    """Return a line for each sample and each question of --probe, with the reply of the best checkpoint as in chat."""
    run.checkpoints.load_best(run.progress)
    if is_validated(run.settings.run.directory):
        replies = run.validator.chat_replies(run.settings.run.directory)
    else:  # learned by heart: greedy search finds the replies of beam search, and is traced already
        replies = run.validator.replies()
    pairs = zip(run.data.shown, replies, strict=True)
    return [question_line(sample.question, reply) for sample, reply in pairs]


def _best(run: Run) -> str:
    """Return which checkpoint is the best, and where it is."""
    progress, folder = run.progress, CHECKPOINTS / run.settings.run.attempt
    if (at_end := better_last(run.settings.run.directory)) is not None:
        return f"{shown(at_end, NATS)} at step {progress.step:,}, the last, in {folder}"
    if progress.best_value is None:
        return f"the last checkpoint, of step {progress.step:,}, in {folder}"
    return f"{shown(progress.best_value, progress.best_by)} at step {progress.best_step:,}, in {folder}"


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
