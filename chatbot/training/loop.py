"""The training loop: runs steps, logs, validates, and saves checkpoints."""

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
from chatbot.training.alarms import MAX_RETURNS, Divergence, SkippedUpdates
from chatbot.training.devices.failures import lost_gpu
from chatbot.training.embedding import PairEmbedding, start_embedding
from chatbot.training.machines.team import tower_names
from chatbot.training.metrics import Window, WindowReader
from chatbot.training.profiling import Profile, TowerTimes, open_profile
from chatbot.training.reporting.reporter import Reporter, conclude
from chatbot.training.result import INTERRUPTED, TIME_UP, TrainingResult
from chatbot.training.run import Run
from chatbot.training.schedule import Due
from chatbot.training.share import Prepared
from chatbot.training.variable_update import StepResult
from chatbot.training.watch import GRACE_SECONDS, Interrupts, StepWatch, interrupts


def train(run: Run) -> TrainingResult:
    """Train until the run is finished, its time limit expires, or a signal arrives.

    All machines call this function, but only the chief validates, prints reports and writes files.

    Raises:
        UserError: If the loss or gradient is repeatedly not finite, or the final loss is far above the first loss.
    """
    announce(run)
    first_step = run.progress.step
    # Without an exchange of gradients, a step cannot hang: it either computes or raises an error.
    timeout = 60 * run.settings.parallel.step_timeout if run.train_step.has_exchange else 0
    watch = StepWatch(
        run.team.chief, lambda: run.train_step.is_tracing, lambda: lost_gpu(run.towers), timeout or math.inf
    )
    names = tower_names(run.team, run.train_step.tower_names)

    def leave() -> bool:
        return run.team.chief and remove_unused(run.settings.run.directory)

    with contextlib.closing(start_embedding(run)) as embedding:
        with (
            open_profile(run) as profile,
            contextlib.closing(Reporter(run, names, embedding.status)) as reporter,
            interrupts(run.team.chief, GRACE_SECONDS, watch.tick, leave) as interrupted,
            contextlib.closing(Window(run.batches_ahead(), run.train_step.begin_copies)) as window,
            run.checkpoints.finished(),
        ):
            loop = Loop(run, reporter, interrupted, window, watch, profile)
            loop.run_steps()
        run.team.barrier()  # Other machines must not exit before the chief has saved.
        run.team.leave()
        loop.check_converging()
        seconds = time.monotonic() - run.began
        progress = run.progress
        can_reply = run.team.chief and progress.step > 0 and loop.stop != INTERRUPTED
        replies = final_replies(run, loop.stop, embedding) if can_reply else []
        conclude(run, loop.stop, first_step, seconds, replies)
        directory = run.settings.run.directory.absolute()
        code = interrupted.exit_code if loop.stop == INTERRUPTED else 0
        return TrainingResult(directory, progress.step, loop.stop, progress.best_step, progress.best_nats, code)


def final_replies(run: Run, stop: str, embedding: PairEmbedding) -> list[str]:
    """Load the best checkpoint, and return its replies to the sample questions and --probe questions.

    If the attempt stores training pairs for retrieval, retrieval is prepared first.
    """
    run.checkpoints.load_best(run.progress)
    directory = run.settings.run.directory
    if stop == TIME_UP:
        embedding.stop()
    else:
        embedding.finish()
    run.validator.fit_judge()
    if is_validated(directory) or (directory / RETRIEVAL).exists():
        return run.validator.chat_replies()
    # Without validation, the model has memorised the pairs, so greedy search suffices.
    return run.validator.replies()


def announce(run: Run) -> None:
    """Print the step at which training resumes, if any, and a note if there is no validation."""
    if run.progress.step:
        print(f"Resuming from step {run.progress.step:,} of checkpoints/{run.settings.run.attempt}.")
    if run.data.validation is None:
        best = run.progress.best_step
        checkpoint = f"best checkpoint so far, from step {best:,}," if best else "last checkpoint"
        look_up = ", and the chat only looks answers up" if run.settings.run.retrieve_pairs else ""
        remedy = "Validation needs 2,000 pairs, or --validation FILE."
        print(f"Without validation, the {checkpoint} is used{look_up}. {remedy}")


@dataclasses.dataclass
class Loop:
    """Runs the training steps. Logs, validates and saves after the steps determined by the schedule.

    Attributes:
        stop: The reason why training has stopped; an empty string while it is running.
    """

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
        self._saved_step = run.progress.step  # the step of the last checkpoint, or 0
        self._reader = WindowReader()
        self._unplanned_step: int | None = None  # a step that is logged only because of a signal or --time-limit
        # Each log prints the metrics of the previous log interval, so it does not wait for the current step. Only the
        # first log waits, so that users soon see that training works.
        self._max_unread = 0

    def run_steps(self) -> None:
        """Train until there is a reason to stop, then save."""
        run = self._run
        due = run.calendar.due(run.progress.step)
        self._validate()  # An earlier process may have been stopped during the validation of this step.
        self.stop = self._reason_to_stop()
        try:
            while not self.stop:
                batch = self._window.next_batch()
                rate = run.rate
                due = self._step(batch, rate)
                # Several machines stop together, so they only check for signals at steps that all of them log.
                if due.log or (run.team.alone and (self._interrupted or run.time_is_up)):
                    self._log(due, batch, rate)
        except BaseException:
            with contextlib.suppress(Exception):  # Results cannot be read from a failed device.
                for record in self._read(0):
                    self._reporter.record(record)
            raise
        if self._saved_step < run.progress.step and not self._divergence.diverges:
            self._reporter.flush()
            run.save(run.gather_state(self._watch.step(run.progress.step)))
        if self.stop == TIME_UP and not due.validate and not self._divergence.diverges:
            self._show_likelihood()
        self._reporter.stopped = self.stop

    def _step(self, batch: Prepared, rate: float) -> Due:
        """Start a training step without waiting for its result, and return the actions that are due after it."""
        number = self._run.progress.step + 1
        with self._profile.step(number), self._watch.step(number):
            self._run.train_step(batch, rate)
            due = self._run.due(number, self._window.seconds_per_step)
        self._run.progress.set_step(number)
        self._reporter.advance()
        return due

    def _log(self, due: Due, batch: Prepared, rate: float) -> None:
        """Report the available metrics, and save and validate if due."""
        run = self._run
        step = run.progress.step
        compute_metrics = self._window.end(step, rate)
        self._unplanned_step = None if due.log else step
        with self._watch.step(step):  # This block waits for other machines and for the devices.
            self._reader.put(compute_metrics, run.train_step.take_results())
            self.stop = run.team.agree(INTERRUPTED if self._interrupted else TIME_UP if run.time_is_up else "")
            records = self._read(0 if due.save or self.stop else self._max_unread)
        self._max_unread = 1
        if self._skipped.due:
            self._go_back()
            return
        for warning in run.checkpoints.warnings():
            self._reporter.warn(warning)
        for record in records[: len(records) - due.save]:
            self._reporter.record(record)
        if due.save:
            with self._window.pause():
                self._save(due, batch, records[-1])
                self._validate()
                self._report_devices(records[-1])
                self.stop = self.stop or self._reason_to_stop()

    def _read(self, unread: int) -> list[dict[str, Any]]:
        """Return the metrics of all unread log intervals except the last `unread` ones.

        Stops early if so many updates were skipped that the run must return to its last checkpoint.
        """
        run = self._run
        records = []
        for record, results in self._reader.get(unread):
            self._count_skipped(results)
            if self._skipped.due:
                break
            records.append(record | {"skipped_updates": run.progress.skipped_updates})
            if (
                record["step"] != self._unplanned_step
                and self._divergence.record(record["step"], results[-1])
                and run.team.chief
            ):
                failure = self._divergence.describe(run.settings.learning.learning_rate)
                self._reporter.warn(f"{failure}; nothing is saved until the loss falls")
        return records

    def _save(self, due: Due, batch: Prepared, record: dict[str, Any]) -> None:
        """Save a checkpoint of this step, and write its metrics.

        If a validation is due, the metrics are written after the validation. They are stored in the checkpoint until
        then, so a resumed run makes up for a validation that was interrupted.
        """
        run = self._run
        if run.team.alone:
            with self._watch.step(run.progress.step):
                seconds = self._times.measure(batch)
            record |= {"tower_seconds": seconds} if seconds else {}
        state = run.gather_state(self._watch.step(run.progress.step))
        run.progress.set_unvalidated(record if due.validate and run.team.chief else None)
        if run.progress.unvalidated is None:
            self._reporter.record(record)
            self._reporter.flush()  # The metrics must be on disk before the checkpoint is saved.
        if not self._divergence.diverges:
            run.save(state)
            self._saved_step = run.progress.step

    def _validate(self) -> None:
        """Validate if a validation is due, report the result, and add it to the checkpoint.

        If no checkpoint of this step was saved, the step cannot become the best one.
        """
        data = self._run.data
        progress = self._run.progress
        if progress.unvalidated is None or not self._run.team.chief:
            return
        record = dict(progress.unvalidated)
        best = False
        is_saved = self._saved_step == progress.step
        if data.validation is not None:
            validation = self._run.validator.validate(data.validation)
            values = validation.values if is_saved else {**validation.values, progress.best_by: None}
            best = data.validation_decides and progress.record_validation(values)
            record |= {f"validation.{name}": value for name, value in validation.values.items()}
            if progress.best_nats is not None:
                record["best.nats_per_character"] = progress.best_nats
            self._reporter.validation(validation, best)
        progress.set_unvalidated(None)
        self._reporter.record(record)
        if is_saved:
            self._reporter.flush()
            self._run.checkpoints.amend(progress, best)

    def _report_devices(self, record: dict[str, Any]) -> None:
        """Warn about slow towers. Without validation, also print replies to the --probe questions."""
        run = self._run
        if run.team.chief and run.data.validation is None and run.data.probe:
            self._reporter.replies(run.validator.replies())
        for warning in self._times.slow(record.get("tower_seconds", ())):
            self._reporter.warn(warning)

    def _reason_to_stop(self) -> str:
        """Return the reason to stop, or "" to continue. All machines get the same result."""
        return self._run.team.agree(INTERRUPTED if self._interrupted else self._run.reason_to_stop())

    def _show_likelihood(self) -> None:
        """Validate and report the last step of a run that was stopped by --time-limit.

        The result does not change which checkpoint is the best.
        """
        run = self._run
        progress = self._run.progress
        if run.team.chief and run.data.validation is not None:
            validation = run.validator.validate(run.data.validation)
            nats = validation.values[NATS]
            if nats is not None and run.data.validation_decides and progress.best_by == NATS:
                run.checkpoints.record_final_nats(nats)
            self._reporter.validation(validation, None)

    def _count_skipped(self, results: Sequence[StepResult]) -> None:
        """Count skipped updates. Warn about the first one since the run started or returned to a checkpoint."""
        old_count = self._skipped.since_return
        self._skipped.record(results)
        if self._skipped.since_return and not old_count and self._run.team.chief:
            skipped = f"{self._skipped.describe()}; the update was skipped and the weights are unchanged"
            self._reporter.warn(f"{skipped}. Further ones are only counted, as skipped_updates in metrics.jsonl")

    def _go_back(self) -> None:
        """Return to the last checkpoint and halve the learning rate.

        Raises:
            UserError: If there is no checkpoint, or the run has already returned MAX_RETURNS times.
        """
        run = self._run
        progress = self._run.progress
        failure = f"{self._skipped.describe()}, {progress.skipped_in_a_row} in a row"
        if not self._saved_step or progress.rate_halvings >= MAX_RETURNS:
            if progress.rate_halvings:
                failure += f", after the run had gone back {MAX_RETURNS} times"
            lower = "with a lower --learning-rate, or with --precision float32"
            raise UserError(f"{failure}; {self._checkpoint_advice()} {lower}")
        self._reader.clear()
        run.go_back(self._watch.step(progress.step))
        self._skipped.reset()
        if run.team.chief:
            times = f"{progress.rate_halvings} of at most {MAX_RETURNS} times"
            start = f"the checkpoint of step {progress.step:,}"
            self._reporter.warn(
                f"{failure}: returning to {start} with half the learning rate, {run.rate:.3g} ({times})"
            )
        self._reporter.rewind()
        self._window.restart(run.batches_ahead())
        self._saved_step = progress.step
        self._validate()

    def check_converging(self) -> None:
        """Raise UserError if the last losses of the run are far above the first one."""
        if self._divergence.diverges:
            failure = self._divergence.describe(self._run.settings.learning.learning_rate)
            raise UserError(f"{failure}; {self._checkpoint_advice()} with a lower --learning-rate")

    def _checkpoint_advice(self) -> str:
        """Return advice for error messages: resume from the last checkpoint, or start again if there is none."""
        if self._saved_step:
            return f"the checkpoint of step {self._saved_step:,} is kept: resume from it"
        return "no checkpoint was saved: start again"
