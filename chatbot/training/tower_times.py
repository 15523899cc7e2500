"""The time that each GPU takes for its share of a step, and a warning about one for which all others wait."""

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from chatbot.training.devices.towers import Tower
from chatbot.training.share import Buffer, Prepared, Share
from chatbot.training.tower_outliers import medians_of_others
from chatbot.training.variable_update.graph import Graph
from chatbot.training.variable_update.interface import VariableUpdate
from chatbot.training.variable_update.replica import Inputs
from chatbot.training.variable_update.synchronous import Synchronous

# A tower takes the least time of so many measurements.
REPEATS = 3
# A tower is slow if it takes so many times the median of the others. Less may be chance.
SLOW = 2.0


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
