"""Runs that go wrong: updates that are skipped since the loss or a gradient is not finite, and a loss that diverges."""

import math
from collections.abc import Sequence

import numpy as np

from chatbot.training.checkpoints.progress import Progress
from chatbot.training.variable_update.interface import StepResult

# Logged losses in a row above the limit until the run counts as diverging, and the multiple of the limit from which a
# single one suffices. Each is a mean over the steps between two logs, so that a spike is shorter.
LEAST_RECORDS, HUGE = 3, 10.0
# Steps in a row above the limit after which the run ends. A run that is above it at its end has failed, too.
MOST_STEPS = 1000
# Nats above the start: 2.7 times its perplexity.
MARGIN = 1.0
# After this many skipped updates in a row, a run goes back to its last checkpoint; it does so MOST_RETURNS times.
PATIENCE, MOST_RETURNS = 5, 3


class Divergence:
    """Compares each logged loss, in nats per token, with a limit.

    The limit is MARGIN above the first logged loss of the run, and at least MARGIN above the loss of a uniform guess
    over the vocabulary: the first batch may be an easy one.

    progress: of the run, which keeps the losses, so that they outlive the process. What an interrupted run logs at its
    end is not compared: the mean goes on to the next step of --log-every, as in a run that was not interrupted.
    """

    def __init__(self, vocabulary_size: int, progress: Progress) -> None:
        self._least_limit, self._progress = math.log(vocabulary_size) + MARGIN, progress
        self._step, self._loss = progress.step, math.nan  # of the last record

    def add(self, results: Sequence[StepResult]) -> None:
        """Add the next steps to the mean. Those whose loss is not finite do not count."""
        for result in results:
            loss = float(np.sum(result.loss_sums.numpy(), dtype=np.float64))
            if math.isfinite(loss):
                self._progress.loss_sum += loss
                self._progress.loss_tokens += float(np.sum(result.weight_sums.numpy(), dtype=np.float64))

    def record_mean(self, step: int) -> bool:
        """Record the mean loss of the steps since the last call, as `record` does."""
        progress = self._progress
        loss = progress.loss_sum / progress.loss_tokens if progress.loss_tokens else math.nan
        progress.loss_sum = progress.loss_tokens = 0.0
        return self.record(step, loss)

    def record(self, step: int, loss: float) -> bool:
        """Count a logged loss; return whether the run begins to diverge with it.

        Ignores NaN, the loss of an interval in which no step had a finite one.
        """
        progress = self._progress
        if math.isnan(loss):
            return False
        if progress.first_loss is None:
            progress.first_loss = loss
        before, self._step, self._loss = self.diverges, step, loss
        limit = max(self._least_limit, progress.first_loss + MARGIN)
        if loss <= limit:
            progress.high_losses, progress.last_low_loss = 0, step
        else:
            progress.high_losses += 1 if loss <= HUGE * limit else LEAST_RECORDS
        return self.diverges and not before

    @property
    def diverges(self) -> bool:
        """Whether the last logged losses were far above the start."""
        return self._progress.high_losses >= LEAST_RECORDS

    @property
    def reason_to_stop(self) -> str:
        """Why the run is over, or "" if it may still recover."""
        lasting = self.diverges and self._step - self._progress.last_low_loss >= MOST_STEPS
        return f"the loss was far above its start for {MOST_STEPS:,} steps" if lasting else ""

    def describe(self, learning_rate: float) -> str:
        """Return the last loss, the first one, and since when it is too high. learning_rate: the flag's value."""
        progress = self._progress
        return (
            f"the loss is {self._loss:,.1f} nats per token at step {self._step:,}; it began at "
            f"{progress.first_loss:,.1f} and is far above that since step {progress.last_low_loss:,}: "
            f"--learning-rate {learning_rate:g} is too high"
        )


class SkippedUpdates:
    """Counts skipped updates, and those in a row. All machines count the same ones.

    An overflow of float16 only lowers the loss scale: it is a skipped update, but none of those in a row.

    progress: of the run, which keeps the counts, so that they outlive the process.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._step = self._last_in_a_row = progress.step
        self.since_return = 0  # those that count in a row, since this process began or last went back

    def record(self, results: Sequence[StepResult]) -> None:
        """Count the next steps, in their order.

        After PATIENCE in a row, the rest is ignored: the run goes back.
        """
        progress = self._progress
        for result in results:
            self._step += 1
            if bool(result.finite):
                progress.skipped_in_a_row = 0
                continue
            progress.skipped_updates += 1
            if result.overflow is not None and bool(result.overflow):
                continue
            if not progress.skipped_in_a_row:
                progress.first_in_a_row = self._step
            progress.skipped_in_a_row += 1
            self._last_in_a_row = self._step
            self.since_return += 1
            if self.due:
                break

    @property
    def due(self) -> bool:
        """Whether the run has to go back."""
        return self._progress.skipped_in_a_row >= PATIENCE

    def went_back(self) -> None:
        """Begin again after the run went back to an earlier step."""
        self._step, self.since_return = self._progress.step, 0

    def describe(self) -> str:
        """Return the steps of the last ones in a row."""
        first, last = self._progress.first_in_a_row, self._last_in_a_row
        steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        return f"the loss or the gradient was not finite at {steps}"
