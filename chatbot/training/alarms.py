"""Runs that go wrong: skipped updates, a loss that diverges."""

import math
from collections.abc import Sequence

import numpy as np

from chatbot.training.checkpoints.progress import Progress
from chatbot.training.variable_update import StepResult

# Logged losses in a row above the limit until the run counts as diverging, and the multiple of the limit from which a
# single one suffices. A run that diverges at its end has failed.
LEAST_RECORDS = 3
HUGE = 10.0
# Nats above the start: 2.7 times its perplexity.
MARGIN = 1.0
# After this many skipped updates in a row, a run goes back to its last checkpoint; it does so MOST_RETURNS times.
PATIENCE = 5
MOST_RETURNS = 3


class Divergence:
    """Compares the loss of each logged step, in nats per token, with MARGIN above that of the first one of the run.

    The first batch may be an easy one: the limit is at least MARGIN above the loss of a uniform guess. progress: of the
    run, counts over restarts.
    """

    def __init__(self, vocabulary_size: int, progress: Progress) -> None:
        self._least_limit = math.log(vocabulary_size) + MARGIN
        self._progress = progress
        self._step, self._loss = progress.step, math.nan  # of the last record

    def record(self, step: int, result: StepResult) -> bool:
        """Count the loss of a logged step, if it is finite; return whether the run begins to diverge with it."""
        progress = self._progress
        loss = float(np.sum(result.loss_sums) / np.sum(result.weight_sums))
        if not math.isfinite(loss):
            return False
        before = self.diverges
        self._step = step
        self._loss = loss
        first = loss if progress.first_loss is None else progress.first_loss
        limit = max(self._least_limit, first + MARGIN)
        progress.logged(loss, 0 if loss <= limit else 1 if loss <= HUGE * limit else LEAST_RECORDS)
        return self.diverges and not before

    @property
    def diverges(self) -> bool:
        """Whether the last logged losses were far above the start."""
        return self._progress.high_losses >= LEAST_RECORDS

    def describe(self, learning_rate: float) -> str:
        """Return the last loss and the first one. learning_rate: the flag's value."""
        return (
            f"the loss is {self._loss:,.1f} nats per token at step {self._step:,}, and began at "
            f"{self._progress.first_loss:,.1f}: --learning-rate {learning_rate:g} is too high"
        )


class SkippedUpdates:
    """Counts skipped updates, and those in a row, which an overflow of float16 is not, in the progress of the run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._step = self._last_in_a_row = progress.step
        self.since_return = 0  # those that count in a row, since this process began or last went back

    def record(self, results: Sequence[StepResult]) -> None:
        """Count the next steps, in their order, until PATIENCE in a row: the run goes back."""
        progress = self._progress
        for result in results:
            self._step += 1
            progress.updated(result.finite, result.overflow)
            if result.finite or result.overflow:
                continue
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
        self._step = self._progress.step
        self.since_return = 0

    def describe(self) -> str:
        """Return the step of the last one in a row."""
        return f"the loss or the gradient was not finite at step {self._last_in_a_row:,}"
