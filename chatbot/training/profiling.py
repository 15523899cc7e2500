"""Detection of slow GPUs, and the profiler traces of --profile."""

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

# The number of measurements per GPU. Only the fastest one counts.
REPEATS = 3
# A GPU is considered slow if it takes this many times the median of the other GPUs. Smaller differences can be noise.
SLOW = 2.0


class TowerTimes:
    """Measures how long each GPU takes to compute the gradients of its part of a batch.

    Nothing is measured if several towers share a CPU or GPU, because they slow each other down.

    Args:
        train_step: The training step.
        towers: The towers of the training step.
    """

    def __init__(self, train_step: VariableUpdate, towers: Sequence[Tower]) -> None:
        self._towers, self._slow = towers, set[int]()
        self._step: Synchronous | None = None
        have_own_gpus = all("GPU" in tower.device and not tower.virtual and tower.parts is None for tower in towers)
        if len(towers) > 1 and have_own_gpus and isinstance(train_step, Synchronous):
            self._step = train_step
            self._gradients = Graph(train_step.first_tower_sums)

    def measure(self, batch: Prepared) -> list[float]:
        """Time the gradient computation of each tower on its first micro-batch.

        Returns:
            The time of each tower in seconds, or an empty list if the towers cannot be measured.
        """
        if self._step is None:
            return []
        try:
            (shares, *_) = self._step.preparation.device_shares(batch)
            return [*map(min, *(self._measure_once(shares) for _ in range(REPEATS)))]
        except tf.errors.OpError:  # A failed device or a lack of memory is handled in the next step.
            return []

    def slow(self, seconds: Sequence[float]) -> list[str]:
        """Return a warning for each slow tower, unless it was already slow in the previous measurement.

        Args:
            seconds: The result of `measure`.
        """
        if not seconds:
            return []
        medians = [statistics.median([*seconds[:i], *seconds[i + 1 :]]) for i in range(len(seconds))]  # other towers
        slow = {i for i, median in enumerate(medians) if seconds[i] > SLOW * median}
        newly_slow = slow - self._slow
        self._slow = slow
        return [
            f"{self._towers[i].name} takes {1000 * seconds[i]:.0f} ms for its share of a step, and the other towers "
            f"(median {1000 * medians[i]:.0f} ms) wait for it; `nvidia-smi -q -d PERFORMANCE` may show why"
            for i in sorted(newly_slow)
        ]

    def _measure_once(self, shares: Sequence[Share | Buffer]) -> list[float]:
        assert self._step is not None
        weights = self._step.tower_weights()
        gradients = self._gradients.concrete(weights[0], shares[0])

        def seconds(tower: Tower, weights: Inputs, share: Share | Buffer) -> float:
            started = time.perf_counter()
            with tf.device(tower.device):
                gradients(weights, share).loss.numpy()  # Reading the loss waits for the device.
            return time.perf_counter() - started

        with ThreadPoolExecutor(len(self._towers), "towers") as pool:
            return list(pool.map(seconds, self._towers, weights, shares))


class Profile:
    """Traces a range of steps with TensorFlow's profiler, for display in TensorBoard.

    Args:
        folder: The folder of the TensorBoard run.
        steps: The steps to trace, counted from 1; may be empty.
    """

    def __init__(self, folder: Path, steps: Sequence[int]) -> None:
        self._folder = folder
        self._steps = steps
        self._active = False

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Trace the step that runs in this context if it is one of the steps to trace."""
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
        """Write the trace if one was started. If it cannot be written, print a message and continue."""
        if not self._active:
            return
        self._active, self._steps = False, ()  # Steps that are repeated from a checkpoint are not traced again.
        try:
            tf.profiler.experimental.stop()
            print(f"Profile: tensorboard --logdir {self._folder}")
        except (tf.errors.OpError, OSError) as error:
            reason = str(error).splitlines()[0]
            print(f"--profile: cannot write to {self._folder} ({reason}); training continues", file=sys.stderr)


@contextmanager
def open_profile(run: Run) -> Iterator[Profile]:
    """Create the profile of --profile, and write the trace at the end. Each machine writes its own trace."""
    steps = run.settings.run.profiled_steps
    folder = TENSORBOARD / run.settings.run.attempt
    if steps and run.progress.step >= steps[-1]:
        print(f"Nothing is profiled: step {steps[-1]:,} of --profile {run.settings.run.profile} is already finished.")
    profile = Profile(folder if run.team.chief else folder / f"worker_{run.team.machine}", steps)
    try:
        yield profile
    finally:
        profile.stop()
