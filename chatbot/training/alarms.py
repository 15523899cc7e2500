"""Detection of failing runs: skipped updates and a diverging loss."""

import math
from collections.abc import Sequence

import numpy as np

from chatbot.training.checkpoints.progress import Progress
from chatbot.training.variable_update import StepResult

# A run is considered diverging after this many consecutive logged losses above a limit, or after one loss above HUGE
# times the limit. See `Divergence` for the limit.
MIN_RECORDS = 3
HUGE = 10.0
# The loss limit is this many nats per token above the first loss.
MARGIN = 1.0
# A run returns to its last checkpoint after PATIENCE consecutive skipped updates, at most MAX_RETURNS times.
PATIENCE = 5
MAX_RETURNS = 3


class Divergence:
    """Detects divergence by comparing each logged loss with the first loss of the run.

    The limit is MARGIN nats per token above the first loss. The first batch may be unusually easy, so the limit is also
    at least MARGIN above the loss of a uniform distribution over the vocabulary.

    Args:
        vocabulary_size: The number of tokens in the vocabulary.
        progress: The saved progress of the run, where the number of high losses is stored.
    """

    def __init__(self, vocabulary_size: int, progress: Progress) -> None:
        self._min_limit = math.log(vocabulary_size) + MARGIN
        self._progress = progress
        self._step, self._loss = progress.step, math.nan  # the last recorded step and its loss

    def record(self, step: int, result: StepResult) -> bool:
        """Record the loss of a step, and return whether the run has just begun to diverge. NaN and inf are ignored."""
        progress = self._progress
        loss = float(np.sum(result.loss_sums) / np.sum(result.weight_sums))
        if not math.isfinite(loss):
            return False
        diverged_before = self.diverges
        self._step = step
        self._loss = loss
        first = loss if progress.first_loss is None else progress.first_loss
        limit = max(self._min_limit, first + MARGIN)
        progress.record_loss(loss, 0 if loss <= limit else 1 if loss <= HUGE * limit else MIN_RECORDS)
        return self.diverges and not diverged_before

    @property
    def diverges(self) -> bool:
        """Whether the most recent losses are far above the first loss."""
        return self._progress.high_losses >= MIN_RECORDS

    def describe(self, learning_rate: float) -> str:
        """Return an error message with the first loss, the last loss and the learning rate."""
        return (
            f"the loss is {self._loss:,.1f} nats per token at step {self._step:,}, up from "
            f"{self._progress.first_loss:,.1f}: --learning-rate {learning_rate:g} is too high"
        )


class SkippedUpdates:
    """Counts skipped updates, which are steps whose loss or gradient was not finite.

    Counts both the total number and the number of consecutive skipped updates. Overflows in float16 are expected, so
    they do not affect the consecutive count.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._step = self._last_skipped_step = progress.step
        self.since_return = 0  # skipped updates since the start, or since the last return to a checkpoint

    def record(self, results: Sequence[StepResult]) -> None:
        """Count the skipped updates in the results of consecutive steps. Stops counting once `due` is true."""
        progress = self._progress
        for result in results:
            self._step += 1
            progress.count_update(result.finite, result.overflow)
            if result.finite or result.overflow:
                continue
            self._last_skipped_step = self._step
            self.since_return += 1
            if self.due:
                break

    @property
    def due(self) -> bool:
        """Whether the run must return to its last checkpoint, after PATIENCE consecutive skipped updates."""
        return self._progress.skipped_in_a_row >= PATIENCE

    def reset(self) -> None:
        """Restart counting after the run has returned to an earlier step."""
        self._step = self._progress.step
        self.since_return = 0

    def describe(self) -> str:
        """Return an error message about the last skipped update that was not an overflow."""
        return f"the loss or the gradient was not finite at step {self._last_skipped_step:,}"
