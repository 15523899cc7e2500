"""The loss of each tower, as TensorBoard runs of their own, for any number of towers."""

import io
import math
import os
import socket
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf
from tensorboard.summary.writer.record_writer import RecordWriter

# A point of 64 towers takes 2 ms, below 1% of the time between two logged steps; that of 1,024 takes 30 ms.
MOST_TOWERS_EACH_STEP = 64
SECONDS_BETWEEN_POINTS = 60.0


class TowerCurves:
    """Writes the tag `loss` of each tower's TensorBoard run.

    Up to MOST_TOWERS_EACH_STEP towers have a point at every logged step. With more, each has a point a minute, the mean
    of its losses since the last one. A file is open only while it is written: many systems allow a process no more than
    1,024 open files.
    """

    def __init__(self, folder: Path, towers: Sequence[str]) -> None:
        """folder: of the attempt's TensorBoard runs. towers: the name of each run."""
        # TensorBoard reads the files of a run in the order of their names.
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._files = [folder / tower / name for tower in towers]
        self._losses: list[list[float]] = [[] for _ in towers]  # since the last point
        self._step = 0
        self._written = -math.inf  # the time of the last point

    def add(self, losses: Sequence[float | None], step: int) -> None:
        """Add the losses of a logged step, in the order of the towers; None for a tower without tokens."""
        for own, loss in zip(self._losses, losses, strict=False):
            if loss is not None:
                own.append(loss)
        self._step = step
        few = len(self._files) <= MOST_TOWERS_EACH_STEP
        if few or time.monotonic() - self._written >= SECONDS_BETWEEN_POINTS:
            self.flush()

    def flush(self) -> None:
        """Write a point for each tower that has losses since its last one."""
        for file, losses in zip(self._files, self._losses, strict=True):
            if losses:
                _append(file, self._step, statistics.fmean(losses))
                losses.clear()
        self._written = time.monotonic()


def _append(file: Path, step: int, loss: float) -> None:
    """Append a point to a file of events, which is created if it does not exist."""
    summary, metadata = tf.compat.v1.Summary, tf.compat.v1.SummaryMetadata
    tensor = tf.make_tensor_proto(loss, tf.float32)
    plugin = metadata(plugin_data=metadata.PluginData(plugin_name="scalars"))
    value = summary.Value(tag="loss", tensor=tensor, metadata=plugin)
    events = [tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary(value=[value]))]
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        events.insert(0, tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2"))
    records = io.BytesIO()
    for event in events:
        RecordWriter(records).write(event.SerializeToString())
    with file.open("ab", buffering=0) as appended:
        appended.write(records.getvalue())  # at once, so that TensorBoard never reads a part of a record
