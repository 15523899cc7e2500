"""TensorBoard's event files, written without a writer of TensorFlow's, such as those of the towers' curves.

The loss, the throughput and the time of each tower are TensorBoard runs of their own, for any number of towers.
"""

import io
import math
import os
import socket
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

from chatbot.durable import write_file

# TensorBoard reads the files of a run in the order of their names, those that contain "tfevents".
EVENTS = "events.out.tfevents."
# A file with this prefix holds what the present start of the run says of the whole run. It replaces that of the start
# before, and is read first.
OF_START = EVENTS + "0."
SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
)

# The tags of a tower.
LOSS, THROUGHPUT, SECONDS = "loss", "throughput/tower_target_tokens_per_s", "throughput/tower_seconds"

# A point of 64 towers takes 3 ms, below 1% of the time between two logged steps; that of 1,024 takes 45 ms.
MOST_TOWERS_EACH_STEP = 64
SECONDS_BETWEEN_POINTS = 60.0


def scalar(tag: str, value: float) -> Any:
    """Return the value of a summary that shows a scalar."""
    # Twice as fast as tf.make_tensor_proto.
    tensor = TensorProto(dtype=tf.float32.as_datatype_enum, tensor_shape=TensorShapeProto(), float_val=[value])
    return tf.compat.v1.Summary.Value(tag=tag, tensor=tensor, metadata=SCALAR)


def start_event(step: int) -> Any:
    """Return the event by which TensorBoard forgets the events of later steps in earlier files of a run."""
    log = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    return tf.compat.v1.Event(wall_time=time.time(), step=step + 1, session_log=log)


def append_values(file: Path, values: Iterable[Any], step: int, first: int) -> None:
    """Append summary values to a file of events.

    A file that does not exist is created, and begins with `start_event(first)`.
    """
    summary = tf.compat.v1.Summary(value=values)
    events = [tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary)]
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        events = [_version(), start_event(first), *events]
    with file.open("ab", buffering=0) as appended:
        appended.write(_joined(events))  # at once, so that TensorBoard never reads a part of a record


def write_of_start(folder: Path, name: str, event: Any) -> None:
    """Write an event of the whole run, in place of that of the start before.

    folder: of a TensorBoard run; it is created. name: of the file, after OF_START.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / f"{OF_START}{name}", _joined([_version(), event]))


def _version() -> Any:
    return tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2")


def _joined(events: Iterable[Any]) -> bytes:
    """Return the content of a file of these events."""
    content = io.BytesIO()
    for event in events:
        RecordWriter(content).write(event.SerializeToString())
    return content.getvalue()


class TowerCurves:
    """Writes the tags LOSS, THROUGHPUT and SECONDS of each tower's TensorBoard run.

    Up to MOST_TOWERS_EACH_STEP towers have a point at every logged step. With more, each has a point a minute, the mean
    of its values since the last one. A file is open only while it is written: many systems allow a process no more than
    1,024 open files.
    """

    def __init__(self, folder: Path, towers: Sequence[str], step: int) -> None:
        """folder: of the attempt's TensorBoard runs. towers: the name of each run. step: that of the checkpoint."""
        name = f"{EVENTS}{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._files = [folder / tower / name for tower in towers]
        self._points: list[list[tuple[float, float]]] = [[] for _ in towers]  # since the last point: loss, throughput
        self._first = self._step = step
        self._written = -math.inf  # the time of the last point

    def add(
        self,
        losses: Sequence[float | None],
        target_tokens_per_s: Sequence[float],
        seconds: Sequence[float],
        step: int,
    ) -> None:
        """Add the values of a logged step, in the order of the towers; a loss is None for a tower without tokens.

        seconds: the times of the towers if they were measured.
        """
        for file, time_of_tower in zip(self._files, seconds, strict=False):
            append_values(file, [scalar(SECONDS, time_of_tower)], step, self._first)
        for points, loss, rate in zip(self._points, losses, target_tokens_per_s, strict=False):
            if loss is not None:
                points.append((loss, rate))
        self._step = step
        few = len(self._files) <= MOST_TOWERS_EACH_STEP
        if few or time.monotonic() - self._written >= SECONDS_BETWEEN_POINTS:
            self.flush()

    def flush(self) -> None:
        """Write a point for each tower that has values since its last one."""
        for file, points in zip(self._files, self._points, strict=True):
            if points:
                loss, rate = map(statistics.fmean, zip(*points, strict=True))
                append_values(file, [scalar(LOSS, loss), scalar(THROUGHPUT, rate)], self._step, self._first)
                points.clear()
        self._written = time.monotonic()
