"""The training loop, in the order in which it runs."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from chatbot.config.attempts import is_validated
from chatbot.config.decoding import DecodingSettings
from chatbot.config.default_search import with_default_search
from chatbot.config.training import Settings
from chatbot.corpus.batching.prefetch import prefetched
from chatbot.errors import UserError
from chatbot.flags import program
from chatbot.training.data import Data
from chatbot.training.devices import Tower
from chatbot.training.divergence import Divergence
from chatbot.training.interrupts import interrupts
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.reporting.reporter import Reporter, open_reporter
from chatbot.training.result import INTERRUPTED, TrainingResult
from chatbot.training.run import OpenStep, Run, open_run
from chatbot.training.schedule import describe
from chatbot.training.window import Window


def train(
    settings: Settings, data: Data, towers: Sequence[Tower], open_step: OpenStep, team: Team = ALONE
) -> TrainingResult:
    """Train until the last step, until validation stops improving, or until Ctrl-C.

    towers: of this machine. open_step: makes the training step of the run's model. All machines run this loop; only the
    chief validates, reports and writes. Raises UserError for a damaged attempt, for a batch with fewer pairs than
    towers, and for a loss that is not finite or stays far above where it began.
    """
    run = open_run(settings, data, towers, open_step, team)
    announce(run)
    progress, train_step, saved = run.progress, run.train_step, run.progress.step
    divergence = Divergence(len(data.vocabulary))
    stop = team.agree(run.reason_to_stop())  # "" while the run goes on
    with open_reporter(run) as reporter, interrupts(announced=team.chief) as interrupted:
        batches = run.batches.from_step(progress.step, train_step.num_shares, team.machine, team.machines)
        window = Window(prefetched(zip(batches, itertools.count(progress.step)), train_step.prepare))
        while not stop:
            team.at_step(progress.step)
            rate = run.schedule.rate(progress.step, progress.rate_drops)
            batch = window.next_batch()
            with reporter.compiling("step"):
                train_step(batch, rate)
            progress.step += 1
            reporter.advance()

            due = run.calendar.due(progress.step)
            if not due.log and not (interrupted and team.alone):
                continue  # several machines stop together, at a step at which all of them log

            state = run.gather_state(due.validate) if due.save else None
            record = window.record(progress.step, rate, train_step.finished_steps())
            check_finite(record, saved)
            if divergence.record(progress.step, record["loss"]) and team.chief:
                reporter.warn(f"{divergence.describe(settings.learning.learning_rate)}; nothing is saved meanwhile")
            best = due.validate and team.chief and validate(run, reporter, record)
            if due.validate:
                run.lower_rate()
            reporter.record(record)
            if state is not None and not divergence.diverges:
                run.save(state, best)
                saved = progress.step
            stop = team.agree(INTERRUPTED if interrupted else run.reason_to_stop() or divergence.reason_to_stop)
            window.restart()
        if saved < progress.step and not divergence.diverges:
            run.save(run.gather_state(validates=False), best=False)
        reporter.stopped(stop)
    team.agree("")  # no machine leaves before the chief has saved
    team.leave()
    check_converging(divergence, settings, saved)
    conclude(run, stop)
    return TrainingResult(
        settings.run.directory.absolute(), progress.step, stop, progress.best_step, progress.best_nats
    )


def validate(run: Run, reporter: Reporter, record: dict[str, Any]) -> bool:
    """Validate the model, add the result to the record, and return whether it is the best so far.

    Too few validation pairs to judge by have no best.
    """
    assert run.data.validation is not None, "no validation is due without validation pairs"
    with reporter.compiling("validation"):
        validation = run.validator.validate(run.data.validation)
    best = run.data.validation_decides and run.progress.validated(validation.values, run.criterion)
    record.update({f"validation.{name}": value for name, value in validation.values.items()})
    reporter.validation(validation, best)
    return best


def check_finite(record: dict[str, Any], saved: int) -> None:
    """Raise UserError when the loss or the gradient norm is not a finite number. saved: the last step saved, or 0."""
    if not (math.isfinite(record["loss"]) and math.isfinite(record["gradient_norm"])):
        raise UserError(
            f"the loss is {record['loss']} at step {record['step']:,}; {kept_checkpoint(saved)} with a lower "
            "--learning-rate"
        )


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
        print(learning_rate)
    if run.progress.step:
        print(f"Resuming from step {run.progress.step:,} of checkpoints/{run.settings.run.attempt}.")
    if run.data.validation is None:
        best = run.progress.best_step
        kept = f"best checkpoint so far, of step {best:,}," if best else "last checkpoint"
        print(f"Nothing is validated: the {kept} is used. It takes 2,000 pairs, or --validation FILE.")


def conclude(run: Run, stop: str) -> None:
    """Print why the run ended, sample replies of the best checkpoint, and the commands to use next."""
    attempt = run.settings.run.attempt
    print(f"Stopped at step {run.progress.step:,}: {stop}.")
    if stop == INTERRUPTED:
        chat = f"{program('chat.py')} --attempt {attempt}"
        print(f"Saved. The same command resumes from here; to talk to it: {chat}")
    elif run.team.chief:
        run.checkpoints.load_best(run.progress)
        if is_validated(run.settings.run.directory):
            replies = run.validator.chat_replies(with_default_search(DecodingSettings(), run.settings.run.directory))
        else:  # learned by heart: greedy search finds the replies of beam search, and is traced already
            replies = run.validator.replies()
        print("Sample replies:")
        for sample, reply in zip(run.data.samples, replies, strict=True):
            print(f"  {sample.question} -> {reply}")
        print(f"Curves: tensorboard --logdir tensorboard/{attempt}")
        print(f"Talk to it: {program('chat.py')} --attempt {attempt}")
