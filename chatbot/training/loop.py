"""The training loop, in the order in which it runs."""

import collections
import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from chatbot.attempts.opening import remove_unused
from chatbot.config.learning import NATS
from chatbot.corpus.vocabulary import PAD
from chatbot.errors import UserError
from chatbot.training.alarms import MOST_RETURNS, Divergence, SkippedUpdates
from chatbot.training.devices.failures import lost_gpu
from chatbot.training.machines.team import tower_names
from chatbot.training.profiling import Profile, TowerTimes, profiled
from chatbot.training.reporting.reporter import Reporter, conclude
from chatbot.training.result import INTERRUPTED, TIME_UP, TrainingResult
from chatbot.training.run import Run
from chatbot.training.schedule import Due
from chatbot.training.share import COPIED_AHEAD, Prepared
from chatbot.training.variable_update import StepResult, unpacked_results
from chatbot.training.watch import GRACE_SECONDS, Interrupts, StepWatch, interrupts

# The metrics of a window of steps, by its results.
Record = Callable[[Sequence[StepResult]], dict[str, Any]]


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
    conclude(run, loop.stop, first, time.monotonic() - run.began)
    progress = run.progress
    directory = run.settings.run.directory.absolute()
    code = interrupted.exit_code if loop.stop == INTERRUPTED else 0
    return TrainingResult(directory, progress.step, loop.stop, progress.best_step, progress.best_nats, code)


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
    _window: "Window"
    _watch: StepWatch
    _profile: Profile
    stop: str = ""

    def __post_init__(self) -> None:
        run = self._run
        self._times = TowerTimes(run.train_step, run.towers)
        self._divergence = Divergence(len(run.data.vocabulary), run.progress)
        self._skipped = SkippedUpdates(run.progress)
        self._saved = run.progress.step  # the last step saved, or 0
        # A thread reads results, so that a log does not wait for the last steps.
        self._reader = ThreadPoolExecutor(1, "results")
        self._unread: collections.deque[tuple[Record, Future[list[StepResult]]]] = collections.deque()  # of each window
        self._most_unread = 0  # windows that a log leaves unread: none at the first one, which shows that it trains

    def run_steps(self) -> None:
        """Train until there is a reason to stop, and save."""
        run = self._run
        progress = self._run.progress
        team = self._run.team
        due = run.calendar.due(progress.step)
        self._finish_validation()
        self.stop = team.agree(INTERRUPTED if self._interrupted else run.reason_to_stop())
        try:
            while not self.stop:
                rate = run.rate
                batch = self._window.next_batch()
                number = progress.step + 1
                with self._profile.step(number), self._watch.step(number):
                    run.train_step(batch, rate)
                    due = run.due(number)
                progress.step = number
                self._reporter.advance()
                # Several machines stop together, at a step at which all of them log.
                if due.log or (team.alone and (self._interrupted or run.time_is_up)):
                    self._log(due, batch, rate)
        except BaseException:
            with contextlib.suppress(Exception):  # a device that has failed has no results
                for record in self._read(0):
                    self._reporter.record(record)
            raise
        if self._saved < progress.step and not self._divergence.diverges:
            self._reporter.flush()
            run.save(run.gather_state(self._watch.step(progress.step)))
        if self.stop == TIME_UP and not due.validate and not self._divergence.diverges:
            self._show_likelihood()
        self._reporter.stopped = self.stop

    def _log(self, due: Due, batch: Prepared, rate: float) -> None:
        """Report the window before this log, also this one if it is saved or the last, and save if that is due."""
        run = self._run
        progress = self._run.progress
        team = self._run.team
        reporter = self._reporter
        record_of = self._window.end(progress.step, rate)
        with self._watch.step(progress.step):  # waits for the other machines, then for the device
            results = self._reader.submit(unpacked_results, run.train_step.take_results())
            self._unread.append((record_of, results))
            self.stop = team.agree(INTERRUPTED if self._interrupted else TIME_UP if run.time_is_up else "")
            records = self._read(0 if due.save or self.stop else self._most_unread)
        self._most_unread = 1
        if self._skipped.due:
            self._go_back()
            return
        for warning in run.checkpoints.warnings():
            reporter.warn(warning)
        for record in records[: len(records) - due.save]:
            reporter.record(record)
        if due.save:
            with self._window.paused():
                self._save(due, batch, records[-1])

    def _read(self, unread: int) -> list[dict[str, Any]]:
        """Return the records of all windows but this many, up to one after which the run has to go back."""
        run = self._run
        records = []
        while len(self._unread) > unread:
            record_of, reading = self._unread.popleft()
            results = reading.result()
            self._count_skipped(results)
            if self._skipped.due:
                break
            record = record_of(results) | {"skipped_updates": run.progress.skipped_updates}
            records.append(record)
            is_planned = run.calendar.due(record["step"]).log  # a window may end by a signal or --time-limit
            if is_planned and self._divergence.record(record["step"], results[-1]) and run.team.chief:
                failure = self._divergence.describe(run.settings.learning.learning_rate)
                self._reporter.warn(f"{failure}; nothing is saved meanwhile")
        return records

    def _save(self, due: Due, batch: Prepared, record: dict[str, Any]) -> None:
        """Save, validate if that is due, and see whether the run is over. record: the metrics of this step.

        What is saved before a validation says that it is to come, so that a process that is killed in it loses nothing.
        """
        run = self._run
        progress = self._run.progress
        team = self._run.team
        reporter = self._reporter
        if team.alone:
            with self._watch.step(progress.step):
                seconds = self._times.measure(batch)
            record |= {"tower_seconds": seconds} if seconds else {}
        state = run.gather_state(self._watch.step(progress.step))
        progress.unvalidated = record if due.validate and team.chief else None
        if progress.unvalidated is None:
            reporter.record(record)
            reporter.flush()  # a process that is killed when the step is saved does not repeat it
        if not self._divergence.diverges:
            run.save(state)
            self._saved = progress.step
        del state  # the arrays are freed as they are written
        self._finish_validation()
        if team.chief and run.data.validation is None and run.data.probe:
            reporter.replies(run.validator.replies())
        for warning in self._times.slow(record.get("tower_seconds", ())):
            reporter.warn(warning)
        self.stop = self.stop or team.agree(INTERRUPTED if self._interrupted else run.reason_to_stop())

    def _finish_validation(self) -> None:
        """Validate this step if that is to come; report it, and write the result into the checkpoint if there is one.

        What is not saved cannot be the best. A resumed run may have no validation any more.
        """
        data = self._run.data
        progress = self._run.progress
        reporter = self._reporter
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
            reporter.validation(validation, best)
        progress.unvalidated = None
        reporter.record(record)
        if is_saved:
            reporter.flush()
            self._run.checkpoints.amend(progress, best)

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
        self._unread.clear()
        run.go_back(self._watch.step(progress.step))
        self._skipped.went_back()
        if run.team.chief:
            times = f"{progress.rate_halvings} of at most {MOST_RETURNS} times"
            start = f"the checkpoint of step {progress.step:,}"
            self._reporter.warn(f"{failure}: back to {start} with half the learning rate, {run.rate:.3g} ({times})")
        self._reporter.went_back()
        self._window.restart(run.batches_ahead())
        self._saved = progress.step
        self._finish_validation()

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


class Window:
    """Times the steps between two logs, waits for their batches, and begins to copy them to the devices."""

    def __init__(
        self, batches: Generator[Prepared, None, None], begin_copies: Callable[[Prepared], None] = lambda _: None
    ) -> None:
        self._batches = batches
        self._begin_copies = begin_copies
        self._copied: collections.deque[Prepared] = collections.deque()
        self.restart()

    def restart(self, batches: Generator[Prepared, None, None] | None = None) -> None:
        """Start a new window, with other batches if they are given."""
        if batches is not None:
            self.close()
            self._batches = batches
            self._copied.clear()
        self._waited = 0.0
        self._real = self._positions = 0
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of the block, in which nothing is trained, out of the window that has begun."""
        began = time.perf_counter()
        yield
        self._started += time.perf_counter() - began

    def close(self) -> None:
        """Stop the preparation of batches."""
        self._batches.close()

    def next_batch(self) -> Prepared:
        """Return the next batch, and begin to copy those after it. The time in which none is ready is input wait."""
        started = time.perf_counter()
        for ahead in itertools.islice(self._batches, 1 + COPIED_AHEAD - len(self._copied)):
            self._begin_copies(ahead)
            self._copied.append(ahead)
        self._waited += time.perf_counter() - started
        batch = self._copied.popleft()
        for share in batch.batch.shares:
            for ids in (share.source, share.target_in):
                self._real += np.count_nonzero(ids != PAD)
                self._positions += ids.size
        return batch

    def end(self, step: int, learning_rate: float) -> Record:
        """End the window with this step, counted from 1, and begin the next one. Return its metrics as a function.

        It takes the results of the steps, of which those whose loss, or gradient, is not finite do not count; NaN if
        none does. Losses are in nats per real target token, None for a tower without tokens. padding: in the shares of
        this machine. tower_skew: by how much the largest number of target tokens of a tower exceeds the mean.
        """
        seconds = time.perf_counter() - self._started
        waited = self._waited
        padding = 1 - self._real / max(1, self._positions)
        self.restart()

        def record(results: Sequence[StepResult]) -> dict[str, Any]:
            losses = np.array([r.loss_sums for r in results], np.float64)  # [steps, towers]
            tokens = np.array([r.weight_sums for r in results], np.float64)  # [steps, towers]
            tower_tokens = tokens.sum(axis=0)  # of all steps
            finite = np.isfinite(losses).all(axis=1)
            losses, tokens = losses[finite].sum(axis=0), tokens[finite].sum(axis=0)  # [towers]
            examples = sum(r.examples for r in results)
            norm = next((r.gradient_norm for r in reversed(results) if math.isfinite(r.gradient_norm)), math.nan)
            return {
                "step": step,
                "loss": float(losses.sum() / tokens.sum()) if tokens.any() else math.nan,
                "tower_losses": [float(x / count) if count else None for x, count in zip(losses, tokens, strict=True)],
                "gradient_norm": norm,
                "learning_rate": learning_rate,
                "examples_per_s": examples / seconds,
                "target_tokens_per_s": float(tower_tokens.sum()) / seconds,
                "tower_target_tokens_per_s": [float(count) / seconds for count in tower_tokens],
                "tower_skew": float(tower_tokens.max() / tower_tokens.mean()) - 1,
                "padding": padding,
                "input_wait": waited / seconds,
            }

        return record
