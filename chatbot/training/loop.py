"""The training loop, in the order in which it runs: step, log, save, validate, and name the best."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

from chatbot.attempts.files import RETRIEVAL, is_validated
from chatbot.attempts.opening import remove_unused
from chatbot.config.learning import NATS
from chatbot.errors import UserError
from chatbot.training.alarms import MOST_RETURNS, Divergence, SkippedUpdates
from chatbot.training.devices.failures import lost_gpu
from chatbot.training.machines.team import tower_names
from chatbot.training.metrics import Window, WindowReader
from chatbot.training.profiling import Profile, TowerTimes, profiled
from chatbot.training.reporting.reporter import Reporter, conclude
from chatbot.training.result import INTERRUPTED, TIME_UP, TrainingResult
from chatbot.training.run import Run
from chatbot.training.schedule import Due
from chatbot.training.share import Prepared
from chatbot.training.variable_update import StepResult
from chatbot.training.watch import GRACE_SECONDS, Interrupts, StepWatch, interrupts


def train(run: Run) -> TrainingResult:
    """Train until the last step, until validation stops improving, until --time-limit, or until a signal.

    All machines run this loop; only the chief validates, reports and writes. Raises UserError for a loss or gradient
    that is again and again not finite, and for a loss that is far above its start at the end.
    """
    announce(run)
    first = run.progress.step
    # Without an exchange, a step that takes long computes: an error would end it.
    timeout = 60 * run.settings.parallel.step_timeout if run.train_step.has_exchange else 0
    watch = StepWatch(
        run.team.chief, lambda: run.train_step.is_tracing, lambda: lost_gpu(run.towers), timeout or math.inf
    )
    names = tower_names(run.team, run.train_step.tower_names)

    def leave() -> bool:
        return run.team.chief and remove_unused(run.settings.run.directory)

    with (
        profiled(run) as profile,
        contextlib.closing(Reporter(run, names)) as reporter,
        interrupts(run.team.chief, GRACE_SECONDS, watch.tick, leave) as interrupted,
        contextlib.closing(Window(run.batches_ahead(), run.train_step.begin_copies)) as window,
        run.checkpoints.finished(),
    ):
        loop = Loop(run, reporter, interrupted, window, watch, profile)
        loop.run_steps()
    run.team.barrier()  # no machine leaves before the chief has saved
    run.team.leave()
    loop.check_converging()
    seconds = time.monotonic() - run.began
    progress = run.progress
    can_reply = run.team.chief and progress.step > 0 and loop.stop != INTERRUPTED
    conclude(run, loop.stop, first, seconds, replies_as_in_chat(run, loop.stop) if can_reply else [])
    directory = run.settings.run.directory.absolute()
    code = interrupted.exit_code if loop.stop == INTERRUPTED else 0
    return TrainingResult(directory, progress.step, loop.stop, progress.best_step, progress.best_nats, code)


def replies_as_in_chat(run: Run, stop: str) -> list[str]:
    """Prepare what replies are looked up in, and return the replies of the best checkpoint to samples and --probe."""
    run.checkpoints.load_best(run.progress)
    directory = run.settings.run.directory
    embeddings = None if stop == TIME_UP else run.settings.run.embeddings  # it may take hours
    run.validator.prepare_lookup(directory, run.data, embeddings)
    if is_validated(directory) or (directory / RETRIEVAL).exists():
        return run.validator.chat_replies(directory)
    return run.validator.replies()  # learned by heart: greedy search finds the replies of beam search, traced already


def announce(run: Run) -> None:
    """Print the step to resume from, and a note if nothing is validated."""
    if run.progress.step:
        print(f"Resuming from step {run.progress.step:,} of checkpoints/{run.settings.run.attempt}.")
    if run.data.validation is None:
        best = run.progress.best_step
        kept = f"best checkpoint so far, of step {best:,}," if best else "last checkpoint"
        print(f"Nothing is validated: the {kept} is used. It takes 2,000 pairs, or --validation FILE.")


@dataclasses.dataclass
class Loop:
    """The steps of a run, and what follows those that are logged. stop: why it is over; "" while it goes on."""

    _run: Run
    _reporter: Reporter
    _interrupted: Interrupts
    _window: Window
    _watch: StepWatch
    _profile: Profile
    stop: str = ""

    def __post_init__(self) -> None:
        run = self._run
        self._times = TowerTimes(run.train_step, run.towers)
        self._divergence = Divergence(len(run.data.vocabulary), run.progress)
        self._skipped = SkippedUpdates(run.progress)
        self._saved = run.progress.step  # the last step saved, or 0
        self._reader = WindowReader()
        self._most_unread = 0  # windows that a log leaves unread: none at the first one, which shows that it trains

    def run_steps(self) -> None:
        """Train until there is a reason to stop, and save."""
        run = self._run
        due = run.calendar.due(run.progress.step)
        self._validate()  # where a process was ended meanwhile
        self.stop = self._reason_to_stop()
        try:
            while not self.stop:
                batch = self._window.next_batch()
                rate = run.rate
                due = self._step(batch, rate)
                # Several machines stop together, at a step at which all of them log.
                if due.log or (run.team.alone and (self._interrupted or run.time_is_up)):
                    self._log(due, batch, rate)
        except BaseException:
            with contextlib.suppress(Exception):  # a device that has failed has no results
                for record in self._read(0):
                    self._reporter.record(record)
            raise
        if self._saved < run.progress.step and not self._divergence.diverges:
            self._reporter.flush()
            run.save(run.gather_state(self._watch.step(run.progress.step)))
        if self.stop == TIME_UP and not due.validate and not self._divergence.diverges:
            self._show_likelihood()
        self._reporter.stopped = self.stop

    def _step(self, batch: Prepared, rate: float) -> Due:
        """Train on a batch, for whose results nothing waits; return what is due after it."""
        number = self._run.progress.step + 1
        with self._profile.step(number), self._watch.step(number):
            self._run.train_step(batch, rate)
            due = self._run.due(number)
        self._run.progress.trained(number)
        self._reporter.advance()
        return due

    def _log(self, due: Due, batch: Prepared, rate: float) -> None:
        """Report the window before this log, also this one if it is saved or the last, and save if that is due."""
        run = self._run
        step = run.progress.step
        record_of = self._window.end(step, rate)
        with self._watch.step(step):  # waits for the other machines, then for the device
            self._reader.put(record_of, run.train_step.take_results())
            self.stop = run.team.agree(INTERRUPTED if self._interrupted else TIME_UP if run.time_is_up else "")
            records = self._read(0 if due.save or self.stop else self._most_unread)
        self._most_unread = 1
        if self._skipped.due:
            self._go_back()
            return
        for warning in run.checkpoints.warnings():
            self._reporter.warn(warning)
        for record in records[: len(records) - due.save]:
            self._reporter.record(record)
        if due.save:
            with self._window.paused():
                self._save(due, batch, records[-1])
                self._validate()
                self._report_devices(records[-1])
                self.stop = self.stop or self._reason_to_stop()

    def _read(self, unread: int) -> list[dict[str, Any]]:
        """Return the records of all windows but this many, up to one after which the run has to go back."""
        run = self._run
        records = []
        for record, results in self._reader.get(unread):
            self._count_skipped(results)
            if self._skipped.due:
                break
            records.append(record | {"skipped_updates": run.progress.skipped_updates})
            is_planned = run.calendar.due(record["step"]).log  # a window may end by a signal or --time-limit
            if is_planned and self._divergence.record(record["step"], results[-1]) and run.team.chief:
                failure = self._divergence.describe(run.settings.learning.learning_rate)
                self._reporter.warn(f"{failure}; nothing is saved meanwhile")
        return records

    def _save(self, due: Due, batch: Prepared, record: dict[str, Any]) -> None:
        """Save. record: the metrics of this step, which are written now unless a validation adds to them.

        What is saved before a validation says that it is to come, so that a process that is killed in it loses nothing.
        """
        run = self._run
        if run.team.alone:
            with self._watch.step(run.progress.step):
                seconds = self._times.measure(batch)
            record |= {"tower_seconds": seconds} if seconds else {}
        state = run.gather_state(self._watch.step(run.progress.step))
        run.progress.awaits_validation(record if due.validate and run.team.chief else None)
        if run.progress.unvalidated is None:
            self._reporter.record(record)
            self._reporter.flush()  # a process that is killed when the step is saved does not repeat it
        if not self._divergence.diverges:
            run.save(state)
            self._saved = run.progress.step

    def _validate(self) -> None:
        """Validate this step if that is to come; report it, and write the result into the checkpoint if there is one.

        What is not saved cannot be the best. A resumed run may have no validation any more.
        """
        data = self._run.data
        progress = self._run.progress
        if progress.unvalidated is None or not self._run.team.chief:
            return
        record = dict(progress.unvalidated)
        best = False
        is_saved = self._saved == progress.step
        if data.validation is not None:
            validation = self._run.validator.validate(data.validation)
            values = validation.values if is_saved else {**validation.values, progress.best_by: None}
            best = data.validation_decides and progress.validated(values)
            record |= {f"validation.{name}": value for name, value in validation.values.items()}
            if progress.best_nats is not None:
                record["best.nats_per_character"] = progress.best_nats
            self._reporter.validation(validation, best)
        progress.awaits_validation(None)
        self._reporter.record(record)
        if is_saved:
            self._reporter.flush()
            self._run.checkpoints.amend(progress, best)

    def _report_devices(self, record: dict[str, Any]) -> None:
        """Show the replies to --probe where nothing is validated, and warn of slow towers. record: of this step."""
        run = self._run
        if run.team.chief and run.data.validation is None and run.data.probe:
            self._reporter.replies(run.validator.replies())
        for warning in self._times.slow(record.get("tower_seconds", ())):
            self._reporter.warn(warning)

    def _reason_to_stop(self) -> str:
        """Return why the run is over, on all machines; "" if it is not."""
        return self._run.team.agree(INTERRUPTED if self._interrupted else self._run.reason_to_stop())

    def _show_likelihood(self) -> None:
        """Show a validation of the last step of a limited run. It decides nothing: a resumed run goes on without it."""
        run = self._run
        progress = self._run.progress
        if run.team.chief and run.data.validation is not None:
            validation = run.validator.validate(run.data.validation)
            nats = validation.values[NATS]
            if nats is not None and run.data.validation_decides and progress.best_by == NATS:
                run.checkpoints.note_at_end(nats)
            self._reporter.validation(validation, None)

    def _count_skipped(self, results: Sequence[StepResult]) -> None:
        """Count the updates that were skipped, and warn of the first one since the run began or went back."""
        before = self._skipped.since_return
        self._skipped.record(results)
        if self._skipped.since_return and not before and self._run.team.chief:
            skipped = f"{self._skipped.describe()}; the update was skipped and the weights are as before"
            self._reporter.warn(f"{skipped}. Further ones are only counted, as skipped_updates in metrics.jsonl")

    def _go_back(self) -> None:
        """Go back to the last checkpoint with half the learning rate. Raises UserError after MOST_RETURNS times."""
        run = self._run
        progress = self._run.progress
        failure = f"{self._skipped.describe()}, {progress.skipped_in_a_row} in a row"
        if not self._saved or progress.rate_halvings >= MOST_RETURNS:
            if progress.rate_halvings:
                failure += f", after the run had gone back {MOST_RETURNS} times"
            lower = "with a lower --learning-rate, or with --precision float32"
            raise UserError(f"{failure}; {self._kept_checkpoint()} {lower}")
        self._reader.clear()
        run.go_back(self._watch.step(progress.step))
        self._skipped.went_back()
        if run.team.chief:
            times = f"{progress.rate_halvings} of at most {MOST_RETURNS} times"
            start = f"the checkpoint of step {progress.step:,}"
            self._reporter.warn(f"{failure}: back to {start} with half the learning rate, {run.rate:.3g} ({times})")
        self._reporter.went_back()
        self._window.restart(run.batches_ahead())
        self._saved = progress.step
        self._validate()

    def check_converging(self) -> None:
        """Raise UserError when the loss of the last steps was far above its start."""
        if self._divergence.diverges:
            failure = self._divergence.describe(self._run.settings.learning.learning_rate)
            raise UserError(f"{failure}; {self._kept_checkpoint()} with a lower --learning-rate")

    def _kept_checkpoint(self) -> str:
        """Return which checkpoint is kept and what to do, for a message."""
        if self._saved:
            return f"the checkpoint of step {self._saved:,} is kept: resume from it"
        return "no checkpoint was saved: start again"
