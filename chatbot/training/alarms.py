"""Runs that go wrong: skipped updates, a loss that diverges, towers that differ from the others."""

import collections
import math
import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chatbot.training.checkpoints.progress import Progress
from chatbot.training.step import StepResult

# Logged losses in a row above the limit until the run counts as diverging, and the multiple of the limit from which a
# single one suffices. A run that diverges at its end has failed.
LEAST_RECORDS, HUGE = 3, 10.0
# Nats above the start: 2.7 times its perplexity.
MARGIN = 1.0
# After this many skipped updates in a row, a run goes back to its last checkpoint; it does so MOST_RETURNS times.
PATIENCE, MOST_RETURNS = 5, 3

# A tower is slow if it takes so many times the median of the others. Less may be chance.
SLOW = 2.0
# The noise is the median change of a deviation between two records. It is known after this many changes, of all towers,
# and follows the last ones.
LEAST_CHANGES, MOST_CHANGES = 20, 400
# Deviations below this number of nats, or below half of the noise, are no sign; more than MOST_SIGN times the noise in
# one record counts as this. A tower is an outlier when the sum of its signs is LIMIT, after five records at the least.
# In simulations, chance never took 2 to 8 towers there in 18,000 records, even with shares of a single pair.
LEAST_NATS, MOST_SIGN, LIMIT = 0.1, 4.0, 18.0
# Of the changes of a normally distributed deviation, the median is this multiple of its standard deviation.
MEDIAN_CHANGE = 0.6745 * 2**0.5


class Divergence:
    """Compares the loss of each logged step, in nats per token, with MARGIN above that of the first one of the run.

    The first batch may be an easy one: the limit is at least MARGIN above the loss of a uniform guess. progress: of the
    run, counts over restarts.
    """

    def __init__(self, vocabulary_size: int, progress: Progress) -> None:
        self._least_limit, self._progress = math.log(vocabulary_size) + MARGIN, progress
        self._step, self._loss = progress.step, math.nan  # of the last record

    def record(self, step: int, result: StepResult) -> bool:
        """Count the loss of a logged step, if it is finite; return whether the run begins to diverge with it."""
        progress = self._progress
        loss = float(np.sum(result.loss_sums) / np.sum(result.weight_sums))
        if not math.isfinite(loss):
            return False
        if progress.first_loss is None:
            progress.first_loss = loss
        before, self._step, self._loss = self.diverges, step, loss
        limit = max(self._least_limit, progress.first_loss + MARGIN)
        count = 0 if loss <= limit else 1 if loss <= HUGE * limit else LEAST_RECORDS
        progress.high_losses = progress.high_losses + count if count else 0
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
            if result.finite:
                progress.skipped_in_a_row = 0
                continue
            progress.skipped_updates += 1
            if result.overflow:
                continue
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
        """Return the step of the last one in a row."""
        return f"the loss or the gradient was not finite at step {self._last_in_a_row:,}"


class SlowTowers:
    """Warns of a tower when it becomes slower than the others."""

    def __init__(self, towers: Sequence[str]) -> None:
        """towers: their names."""
        self._towers, self._slow = towers, set[int]()

    def record(self, seconds: Sequence[float]) -> list[str]:
        """Return a warning about each tower that has become slow. seconds: of `TowerTimes`; [] if not measured."""
        if not seconds:
            return []
        others = medians_of_others(np.array(seconds))
        slow = {i for i, median in enumerate(others) if math.isfinite(median) and seconds[i] > SLOW * median}
        new, self._slow = slow - self._slow, slow
        return [
            f"{self._towers[i]} takes {1000 * seconds[i]:.0f} ms for its share of a step, the median of the others "
            f"{1000 * others[i]:.0f} ms: all wait for it; `nvidia-smi -q -d PERFORMANCE` may show why"
            for i in sorted(new)
        ]


class TowerOutliers:
    """Compares the loss of each tower, in nats per token, with the median of the other towers, record by record.

    A cumulative sum (Page 1954) grows by how far a deviation exceeds the largest that is no sign, in units of the
    noise, and shrinks while it does not. The noise is measured by changes between records: the loss of a small share
    varies by 1 nat, that of a large one by 0.05, and a tower that is too high from the first record on is no noise.
    """

    def __init__(self, towers: Sequence[str]) -> None:
        """towers: their names."""
        self._towers = towers
        self._sums = np.zeros(len(towers))
        self._before = np.full(len(towers), np.nan)  # the deviations of the last record
        self._changes: collections.deque[float] = collections.deque(maxlen=MOST_CHANGES)
        self._outliers: set[int] = set()

    def record(self, step: int, losses: Sequence[float | None]) -> list[str]:
        """Add the losses of a step, None for a tower without tokens; return a warning about each new outlier."""
        values = np.array([np.nan if loss is None else loss for loss in losses])
        others = medians_of_others(values)
        deviations = values - others
        changes = np.abs(deviations - self._before)
        self._before = deviations
        self._changes.extend(changes[np.isfinite(changes)].tolist())
        if len(self._changes) < LEAST_CHANGES:
            return []
        noise = max(statistics.median(self._changes) / MEDIAN_CHANGE, LEAST_NATS / 2)
        signs = np.clip((deviations - max(noise / 2, LEAST_NATS)) / noise, -MOST_SIGN, MOST_SIGN)
        self._sums = np.clip(self._sums + np.nan_to_num(signs), 0, LIMIT)
        self._outliers -= {*np.flatnonzero(self._sums == 0).tolist()}
        new = {*np.flatnonzero(self._sums == LIMIT).tolist()} - self._outliers
        self._outliers |= new
        return [
            f"the loss of {self._towers[i]} leaves that of the other towers: {values[i]:.2f} nats per token at step "
            f"{step:,}, the median of the others is {others[i]:.2f}; its weights or its data may be wrong"
            for i in sorted(new)
        ]


def medians_of_others(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return for each value the median of the others, NaN if there is none. NaN are no values."""
    medians = np.full(len(values), np.nan)
    finite = np.flatnonzero(~np.isnan(values))
    for i in finite if len(finite) > 1 else ():
        medians[i] = np.median(values[finite[finite != i]])
    return medians
