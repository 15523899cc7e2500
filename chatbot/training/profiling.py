"""The time that each GPU takes for a step, and the traces of --profile."""

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from chatbot.config.attempts import TENSORBOARD
from chatbot.training.devices.towers import Tower
from chatbot.training.replica import Inputs
from chatbot.training.run import Run
from chatbot.training.share import Buffer, Prepared, Share
from chatbot.training.step import Synchronous
from chatbot.training.variable_update import Graph, VariableUpdate

# A tower takes the least time of so many measurements.
REPEATS = 3
# A tower is slow if it takes so many times the median of the others. Less may be chance.
SLOW = 2.0


class TowerTimes:
    """Measures the seconds that each GPU takes for the gradients of its share; not of CPUs, which share their cores."""

    def __init__(self, train_step: VariableUpdate, towers: Sequence[Tower]) -> None:
        """towers: those of `train_step`."""
        self._towers, self._slow = towers, set[int]()
        self._step: Synchronous | None = None
        are_apart = all("GPU" in tower.device and not tower.virtual and tower.parts is None for tower in towers)
        if len(towers) > 1 and are_apart and isinstance(train_step, Synchronous):
            self._step = train_step
            self._gradients = Graph(train_step.first_tower_sums)

    def measure(self, batch: Prepared) -> list[float]:
        """Return the seconds of each tower for the first piece of its share, computed again; [] if not measured."""
        if self._step is None:
            return []
        try:
            (shares, *_) = self._step.preparation.copied(batch)
            return [*map(min, *(self._measure_once(shares) for _ in range(REPEATS)))]
        except tf.errors.OpError:  # the next step shows a failure of a device or of memory, and reacts to it
            return []

    def slow(self, seconds: Sequence[float]) -> list[str]:
        """Return a warning about each tower that has become slower than the others. seconds: of `measure`."""
        if not seconds:
            return []
        others = [statistics.median([*seconds[:i], *seconds[i + 1 :]]) for i in range(len(seconds))]
        slow = {i for i, median in enumerate(others) if seconds[i] > SLOW * median}
        new = slow - self._slow
        self._slow = slow
        return [
            f"{self._towers[i].name} takes {1000 * seconds[i]:.0f} ms for its share of a step, the median of the others"
            f" {1000 * others[i]:.0f} ms: all wait for it; `nvidia-smi -q -d PERFORMANCE` may show why"
            for i in sorted(new)
        ]

    def _measure_once(self, shares: Sequence[Share | Buffer]) -> list[float]:
        assert self._step is not None
        weights = self._step.tower_weights()
        gradients = self._gradients.concrete(weights[0], shares[0])

        def seconds(tower: Tower, weights: Inputs, share: Share | Buffer) -> float:
            started = time.perf_counter()
            with tf.device(tower.device):
                gradients(weights, share).loss.numpy()  # waits for all that the device computes
            return time.perf_counter() - started

        with ThreadPoolExecutor(len(self._towers), "towers") as pool:
            return list(pool.map(seconds, self._towers, weights, shares))


class Profile:
    """Traces the steps of a range into the folder of a TensorBoard run. An empty range traces nothing."""

    def __init__(self, folder: Path, steps: Sequence[int]) -> None:
        self._folder = folder
        self._steps = steps
        self._active = False

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Trace the step that runs in this context if it is one of the range. number: from 1."""
        if number not in self._steps:
            yield
            return
        if not self._active:
            tf.profiler.experimental.start(str(self._folder))
            self._active = True
        with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
            yield
        if number == self._steps[-1]:
            tf.test.experimental.sync_devices()
            self.stop()

    def stop(self) -> None:
        """Write the trace, if there is one. Training goes on if it cannot be written."""
        if not self._active:
            return
        self._active, self._steps = False, ()  # a run that goes back to a checkpoint repeats steps
        try:
            tf.profiler.experimental.stop()
            print(f"Profile: tensorboard --logdir {self._folder}")
        except (tf.errors.OpError, OSError) as error:
            reason = str(error).splitlines()[0]
            print(f"--profile: {self._folder} cannot be written ({reason}); training goes on", file=sys.stderr)


@contextmanager
def profiled(run: Run) -> Iterator[Profile]:
    """Open the profile of --profile. Each machine writes its own."""
    steps = run.settings.run.profiled_steps
    folder = TENSORBOARD / run.settings.run.attempt
    if steps and run.progress.step >= steps[-1]:
        print(f"Nothing is profiled: step {steps[-1]:,} of --profile {run.settings.run.profile} is over.")
    profile = Profile(folder if run.team.chief else folder / f"worker_{run.team.machine}", steps)
    try:
        yield profile
    finally:
        profile.stop()
