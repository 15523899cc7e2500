"""The training loop, in the order in which it runs."""

import contextlib
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.training.data import Data
from chatbot.training.devices.failures import lost_gpus
from chatbot.training.devices.towers import Tower
from chatbot.training.divergence import MOST_RETURNS, Divergence, SkippedUpdates
from chatbot.training.interrupts import GRACE_SECONDS, AbandonedError, Interrupts, interrupts
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.profiling import profiled
from chatbot.training.reporting.reporter import Reporter, open_reporter
from chatbot.training.reporting.summary import conclude
from chatbot.training.result import INTERRUPTED, TIME_UP, TrainingResult
from chatbot.training.run import OpenStep, Run, open_run
from chatbot.training.schedule import describe
from chatbot.training.step_watch import StepWatch, advice_of
from chatbot.training.streams import print_wrapped
from chatbot.training.tower_times import TowerTimes
from chatbot.training.validator import Validation
from chatbot.training.variable_update.interface import StepResult
from chatbot.training.window import Window


def train(
    settings: Settings, data: Data, towers: Sequence[Tower], open_step: OpenStep, team: Team = ALONE
) -> TrainingResult:
    """Train until the last step, until validation stops improving, until --time-limit, or until a signal.

    towers: of this machine. open_step: makes the training step of the run's model. All machines run this loop; only the
    chief validates, reports and writes. Raises UserError for a damaged attempt, for a batch with fewer pairs than
    towers, for a loss or gradient that is again and again not finite, and for a loss that stays far above its start.
    """
    started = time.monotonic()
    run = open_run(settings, data, towers, open_step, team)
    announce(run)
    progress, train_step, first = run.progress, run.train_step, run.progress.step
    saved = first
    divergence = Divergence(len(data.vocabulary), progress)
    skipped = SkippedUpdates(progress)
    times = TowerTimes(train_step, towers)
    advice = advice_of(settings, towers, team) if team.chief else ""
    watch = StepWatch(advice, lambda: train_step.is_tracing, lambda: lost_gpus(towers))
    with (
        profiled(run) as profile,
        open_reporter(run) as reporter,
        interrupts(team.chief, GRACE_SECONDS, watch.tick) as interrupted,
        open_window(run) as window,
        run.checkpoints.finished(),
    ):
        if progress.unvalidated:
            make_up_validation(run, reporter, interrupted)
        stop = team.agree(INTERRUPTED if interrupted else run.reason_to_stop())  # "" while the run goes on
        while not stop:
            team.at_step(progress.step)
            rate = run.rate
            batch = window.next_batch()
            number = progress.step + 1
            with reporter.compiling("step"), profile.step(number, batch), watch.step(number):
                train_step(batch, rate)
            progress.step += 1
            reporter.advance()

            due = run.due(progress.step)
            if not due.log and not (team.alone and (interrupted or run.time_is_up)):
                continue  # several machines stop together, at a step at which all of them log
            with watch.step(number):  # waits for the other machines, then for the device
                stop = team.agree(INTERRUPTED if interrupted else TIME_UP if run.time_is_up else "")
                results = train_step.finished_steps()
                count_skipped(run, reporter, skipped, results)
            if skipped.due:
                go_back(run, reporter, skipped, saved)
                window.restart(run.batches_ahead())
                saved = progress.step
                continue
            divergence.add(results)
            record = window.record(progress.step, rate, results) | {"skipped_updates": progress.skipped_updates}
            if due.save and team.alone:
                with watch.step(number):
                    seconds = times.measure(batch)
                record |= {"tower_seconds": seconds} if seconds else {}
            state = run.gather_state() if due.save else None
            for warning in run.checkpoints.warnings():
                reporter.warn(warning)
            if due.log and divergence.record_mean(progress.step) and team.chief:
                reporter.warn(f"{divergence.describe(settings.learning.learning_rate)}; nothing is saved meanwhile")
            best = validate(run, reporter, interrupted, record) if due.validate and team.chief else None
            if due.save and team.chief and data.validation is None and data.probe:
                reporter.probe(run.validator.replies())
            reporter.record(record)
            if state is not None and not divergence.diverges:
                run.save(state, bool(best))
                state, saved = None, progress.step  # the arrays are freed as they are written
            stop = stop or team.agree(INTERRUPTED if interrupted else run.reason_to_stop() or divergence.reason_to_stop)
            window.restart()
        if saved < progress.step and not divergence.diverges:
            run.save(run.gather_state(), best=False)
        if stop == TIME_UP and not due.validate and not divergence.diverges:
            show_likelihood(run, reporter, interrupted)
        reporter.stopped(stop)
    team.agree("")  # no machine leaves before the chief has saved
    team.leave()
    check_converging(divergence, settings, saved)
    conclude(run, stop, first, time.monotonic() - started)
    return TrainingResult(
        settings.run.directory.absolute(), progress.step, stop, progress.best_step, progress.best_nats
    )


def open_window(run: Run) -> AbstractContextManager[Window]:
    """Begin to prepare the batches from the next step on."""
    return contextlib.closing(Window(run.batches_ahead()))


def measure(run: Run, reporter: Reporter, interrupted: Interrupts) -> Validation | None:
    """Return a validation of the model; None if SIGTERM or SIGHUP ended it.

    It may take longer than the process is given.
    """
    assert run.data.validation is not None, "no validation is due without validation pairs"
    try:
        with interrupted.abandoned_by_signal(), reporter.compiling("validation"):
            return run.validator.validate(run.data.validation)
    except AbandonedError:
        return None


def validate(run: Run, reporter: Reporter, interrupted: Interrupts, record: dict[str, Any]) -> bool | None:
    """Validate the model, add the result to the record, and return whether it is the best so far.

    Too few validation pairs to judge by have no best. None if a signal ended the validation: the resumed run makes up
    for it.
    """
    validation = measure(run, reporter, interrupted)
    run.progress.unvalidated = validation is None
    if validation is None:
        return None
    best = run.data.validation_decides and run.progress.validated(validation.values)
    record.update({f"validation.{name}": value for name, value in validation.values.items()})
    if run.progress.best_nats is not None:
        record["best.nats_per_character"] = run.progress.best_nats
    reporter.validation(validation, best)
    return best


def make_up_validation(run: Run, reporter: Reporter, interrupted: Interrupts) -> None:
    """Make up for the validation that a signal has ended after the checkpoint's step. All machines call it."""
    record: dict[str, Any] = {"step": run.progress.step}
    best, run.progress.unvalidated = None, False
    if run.team.chief and run.data.validation is not None:
        best = validate(run, reporter, interrupted, record)
    if best is not None:
        reporter.made_up(record)
        run.checkpoints.amend(run.progress, best)


def show_likelihood(run: Run, reporter: Reporter, interrupted: Interrupts) -> None:
    """Show a validation of the last step of a limited run. It does not count: the run goes on as if without a limit."""
    if run.team.chief and run.data.validation is not None:
        validation = measure(run, reporter, interrupted)
        if validation is not None:
            reporter.uncounted_validation(validation)


def count_skipped(run: Run, reporter: Reporter, skipped: SkippedUpdates, results: Sequence[StepResult]) -> None:
    """Count the updates that were skipped, and warn of the first one since the run began or went back."""
    before = skipped.since_return
    skipped.record(results)
    if skipped.since_return and not before and run.team.chief:
        reporter.warn(
            f"{skipped.describe()}; the update was skipped and the weights are as before. Further ones are only "
            "counted, as skipped_updates in metrics.jsonl"
        )


def go_back(run: Run, reporter: Reporter, skipped: SkippedUpdates, saved: int) -> None:
    """Go back to the last checkpoint with half the learning rate.

    saved: the last step saved, or 0. Raises UserError when the run has gone back MOST_RETURNS times already.
    """
    failure = f"{skipped.describe()}, {run.progress.skipped_in_a_row} in a row"
    if run.progress.rate_halvings >= MOST_RETURNS:
        raise UserError(
            f"{failure}, after the run had gone back {MOST_RETURNS} times; {kept_checkpoint(saved)} with a lower "
            "--learning-rate, or with --precision float32"
        )
    run.go_back()
    skipped.went_back()
    if run.team.chief:
        place = f"the checkpoint of step {run.progress.step:,}" if run.progress.step else "the untrained weights"
        reporter.warn(
            f"{failure}: back to {place} with half the learning rate, {run.rate:.3g} "
            f"({run.progress.rate_halvings} of at most {MOST_RETURNS} times)"
        )
    reporter.went_back()


def check_converging(divergence: Divergence, settings: Settings, saved: int) -> None:
    """Raise UserError when the loss of the last steps was far above its start. saved: the last step saved, or 0."""
    if divergence.diverges:
        raise UserError(
            f"{divergence.describe(settings.learning.learning_rate)}; {kept_checkpoint(saved)} with a lower "
            "--learning-rate"
        )


def kept_checkpoint(saved: int) -> str:
    """Return which checkpoint is kept and what to do, for a message. saved: the last step saved, or 0."""
    return (
        f"the checkpoint of step {saved:,} is kept: resume from it" if saved else "no checkpoint was saved: start again"
    )


def announce(run: Run) -> None:
    """Print the learning rate, the step to resume from, and a note if nothing is validated."""
    learning_rate = describe(run.settings.learning, run.schedule, run.pairs_per_step)
    if learning_rate:
        print_wrapped(learning_rate)
    if run.progress.step:
        print_wrapped(f"Resuming from step {run.progress.step:,} of checkpoints/{run.settings.run.attempt}.")
    if run.data.validation is None:
        best = run.progress.best_step
        kept = f"best checkpoint so far, of step {best:,}," if best else "last checkpoint"
        print_wrapped(f"Nothing is validated: the {kept} is used. It takes 2,000 pairs, or --validation FILE.")
