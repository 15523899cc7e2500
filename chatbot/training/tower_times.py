"""Towers that differ from the others: by the time that a GPU takes for its share of a step, or by their loss.

All others wait for a slow one. The loss of a tower may leave that of the others by stale or damaged weights, or wrong
data.
"""

import collections
import math
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.training.devices.towers import Tower
from chatbot.training.share import Buffer, Prepared, Share
from chatbot.training.variable_update.graph import Graph
from chatbot.training.variable_update.interface import VariableUpdate
from chatbot.training.variable_update.replica import Inputs
from chatbot.training.variable_update.synchronous import Synchronous

# A tower takes the least time of so many measurements.
REPEATS = 3
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


class TowerTimes:
    """Measures the seconds that each GPU takes for the gradients of its share, without their exchange.

    Nothing is measured where the time of a tower means nothing, as on CPUs and parts of a GPU, which share their cores,
    or where each tower has a function of its own.
    """

    def __init__(self, train_step: VariableUpdate, towers: Sequence[Tower]) -> None:
        """towers: those of `train_step`."""
        self._towers = towers
        self._step: Synchronous | None = None
        are_apart = all("GPU" in tower.device and not tower.virtual for tower in towers)
        if len(towers) > 1 and are_apart and isinstance(train_step, Synchronous):
            function, *others = train_step.gradient_functions
            if all(other is function for other in others):
                self._step = train_step
                self._gradients = Graph(train_step.first_tower_sums)

    def measure(self, batch: Prepared) -> list[float]:
        """Return the seconds of each tower for the first piece of its share of a batch; [] if nothing is measured.

        The gradients are computed again, and nothing is updated.
        """
        if self._step is None:
            return []
        try:
            return [
                min(of_tower) for of_tower in zip(*(self._measure_once(batch) for _ in range(REPEATS)), strict=True)
            ]
        except tf.errors.OpError:  # the next step shows a failure of a device or of memory, and reacts to it
            return []

    def _measure_once(self, batch: Prepared) -> list[float]:
        assert self._step is not None
        weights, shares, used = self._step.tower_weights(), batch.shares[0], tf.constant(batch.used.shape[0])
        gradients = self._gradients.concrete(weights[0], shares[0], used)

        def seconds(tower: Tower, weights: Inputs, share: Share | Buffer) -> float:
            started = time.perf_counter()
            with tf.device(tower.device):
                gradients(weights, share, used).loss.numpy()  # waits for all that the device computes
            return time.perf_counter() - started

        with ThreadPoolExecutor(len(self._towers), "towers") as pool:
            return list(pool.map(seconds, self._towers, weights, shares))


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

    The test is a cumulative sum (Page 1954): a tower's sum grows by how far its deviation exceeds the largest that is
    no sign, in units of the noise, and shrinks while it does not. The noise is measured, since the loss of a small
    share varies by 1 nat and that of a large one by 0.05. It comes from changes between records: a tower that is too
    high from the first record on does not count as noise.
    """

    def __init__(self, towers: Sequence[str]) -> None:
        """towers: their names."""
        self._towers = towers
        self._sums = np.zeros(len(towers))
        self._before = np.full(len(towers), np.nan)  # the deviations of the last record
        self._changes: collections.deque[float] = collections.deque(maxlen=MOST_CHANGES)
        self._outliers: set[int] = set()

    def record(self, step: int, losses: Sequence[float | None]) -> list[str]:
        """Add the losses of a logged step; return a warning about each tower that becomes an outlier with it.

        losses: in the order of the towers; None for a tower without tokens.
        """
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
    order = np.argsort(values)[: np.count_nonzero(~np.isnan(values))]  # NaN are sorted last
    if len(order) < 2:
        return medians
    ordered, ranks = values[order], np.arange(len(order))
    low, high = (len(order) - 2) // 2, (len(order) - 1) // 2  # the middle ones of the others
    medians[order] = (ordered[low + (ranks <= low)] + ordered[high + (ranks <= high)]) / 2
    return medians
