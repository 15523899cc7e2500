"""--profile: a trace of what the devices and the host do in some steps, for TensorBoard's Profile page."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from chatbot.config.attempts import TENSORBOARD
from chatbot.training.run import Run
from chatbot.training.share import Prepared


class Profile:
    """Traces the steps of a range into the folder of a TensorBoard run. An empty range traces nothing."""

    def __init__(self, folder: Path, steps: Sequence[int]) -> None:
        self.folder, self._steps = folder, steps
        self.traced: list[int] = []  # the steps that were traced
        self.written = False
        self._active = False

    @contextmanager
    def step(self, number: int, batch: Prepared) -> Iterator[None]:
        """Trace the step that trains on this batch in this context if it is one of the range. number: from 1."""
        if number not in self._steps:
            yield
            return
        if not self.traced:
            tf.profiler.experimental.start(str(self.folder))
            self._active = True
        self.traced.append(number)
        with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
            yield
        if number == self._steps[-1]:
            for share in batch.shares[-1]:
                first = tf.nest.flatten(share)[0]
                tf.cast(first, tf.float32).numpy()  # waits for what the tower's device has been given before
            self.stop()

    def stop(self) -> None:
        """Write the trace, if there is one. Training goes on if it cannot be written."""
        if not self._active:
            return
        self._active, self._steps = False, ()  # a run that goes back to a checkpoint repeats steps
        try:
            tf.profiler.experimental.stop()
            self.written = True
        except (tf.errors.OpError, OSError) as error:
            reason = str(error).splitlines()[0]
            print(f"\n--profile: {self.folder} cannot be written ({reason}); training goes on", file=sys.stderr)


@contextmanager
def profiled(run: Run) -> Iterator[Profile]:
    """Open the profile of --profile. Each machine writes its own; the chief says where.

    Processes on one machine need folders of their own, since the files have the name of the machine.
    """
    steps, folder = run.settings.run.profiled_steps, TENSORBOARD / run.settings.run.attempt
    profile = Profile(folder if run.team.chief else folder / f"worker_{run.team.machine}", steps)
    if steps and run.progress.step >= steps[-1] and run.team.chief:
        print(f"Nothing is profiled: step {steps[-1]:,} of --profile {run.settings.run.profile} is over.")
    try:
        yield profile
    finally:
        profile.stop()
    if profile.written and run.team.chief:
        first, last = profile.traced[0], profile.traced[-1]
        print(f"Profile of the steps {first:,} to {last:,}: tensorboard --logdir {folder}")
