"""What watches the steps: for one without progress, for the time of each GPU, and for --profile."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from chatbot.config.attempts import TENSORBOARD
from chatbot.errors import DeviceError, end_process
from chatbot.training.devices.towers import Tower
from chatbot.training.replica import Inputs
from chatbot.training.run import Run
from chatbot.training.share import Buffer, Prepared, Share
from chatbot.training.step import Graph, Synchronous, VariableUpdate

# A tower takes the least time of so many measurements.
REPEATS = 3
# Seconds without progress after which the line is due.
LIMIT = 60
ADVICE = "It may be slow, or wait for another machine; or a collective hangs: NCCL_DEBUG=INFO shows where"


class StepWatch:
    """Says once in a run that a step has made no progress for LIMIT seconds, and ends the process if a GPU is lost.

    A collective between GPUs that hangs would give no other sign. The time in which graphs are traced does not count.
    says_so: whether there is a line. lost_device: asks the driver for lost GPUs, a second after each LIMIT.
    """

    def __init__(
        self, says_so: bool, is_tracing: Callable[[], bool], lost_device: Callable[[], DeviceError | None]
    ) -> None:
        self._is_due, self._is_tracing, self._lost_device = says_so, is_tracing, lost_device
        self._step: int | None = None  # None: not within a step
        self._counted: int | None = None  # the step that `_seconds` belong to
        self._seconds = 0

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Watch the block, a part of step `number`, counted from 1."""
        self._step = number
        try:
            yield
        finally:
            self._step = None

    def tick(self) -> str:
        """Return the line if it is due now, else "". Another thread than that of the steps calls this every second.

        The calls are counted, so that the time in which the process was stopped does not count.
        """
        step = self._step
        if step is None or step != self._counted or self._is_tracing():
            self._counted, self._seconds = step, 0
            return ""
        self._seconds += 1
        if self._seconds > LIMIT and self._seconds % LIMIT == 1:  # when the line, which was due before, is printed
            # A driver that has lost a GPU may not answer either, and this thread must.
            threading.Thread(target=self._end_if_device_is_lost, daemon=True).start()
        if self._seconds % LIMIT or not self._is_due:
            return ""
        self._is_due = False
        return f"Step {step:,} has made no progress for {LIMIT} seconds. {ADVICE}."

    def _end_if_device_is_lost(self) -> None:
        error = self._lost_device()
        if error is not None:
            print(file=sys.stderr)  # ends the line of the progress bar
            end_process(error)


class TowerTimes:
    """Measures the seconds that each GPU takes for the gradients of its share; not of CPUs, which share their cores."""

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
        """Return the seconds of each tower for the first piece of its share, computed again; [] if not measured."""
        if self._step is None:
            return []
        try:
            (shares, *_) = self._step.preparation.copied(batch)
            return [*map(min, *(self._measure_once(shares) for _ in range(REPEATS)))]
        except tf.errors.OpError:  # the next step shows a failure of a device or of memory, and reacts to it
            return []

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
        self._folder, self._steps = folder, steps
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
    steps, folder = run.settings.run.profiled_steps, TENSORBOARD / run.settings.run.attempt
    if steps and run.progress.step >= steps[-1]:
        print(f"Nothing is profiled: step {steps[-1]:,} of --profile {run.settings.run.profile} is over.")
    profile = Profile(folder if run.team.chief else folder / f"worker_{run.team.machine}", steps)
    try:
        yield profile
    finally:
        profile.stop()
