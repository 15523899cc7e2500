"""--profile: a trace of what the devices and the host do in some steps, for TensorBoard's Profile page and Perfetto."""

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

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
            for file in (self.folder / "plugins" / "profile").glob("*/*.xplane.pb"):
                write_trace(file)
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


def write_trace(file: Path) -> None:
    """Write the content of an .xplane.pb file as .trace.json.gz beside it, in the format of Chrome and Perfetto."""
    trace = file.with_name(file.name.replace(".xplane.pb", ".trace.json.gz"))
    if not trace.exists():
        space = XSpace.FromString(file.read_bytes())
        events = [event for number, plane in enumerate(space.planes) for event in _trace_events(number, plane)]
        trace.write_bytes(gzip.compress(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}).encode()))


def _trace_events(device: int, plane: Any) -> Iterator[dict[str, Any]]:
    """Yield the name of a device, and of its threads with what they did. Times are in microseconds.

    The numbers of threads are new ones, since JavaScript reads no integers of 64 bits.
    """
    for thread, line in enumerate(plane.lines):
        numbers = {"pid": device, "tid": thread}
        yield {"ph": "M", **numbers, "name": "process_name", "args": {"name": plane.name}}
        yield {"ph": "M", **numbers, "name": "thread_name", "args": {"name": line.display_name or line.name}}
        for event in line.events:
            kind = plane.event_metadata[event.metadata_id]
            start = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
            times = {"ts": start, "dur": event.duration_ps / 1e6}
            yield {"ph": "X", **numbers, **times, "name": kind.display_name or kind.name}
