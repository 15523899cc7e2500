"""TensorBoard's event files, written without a writer of TensorFlow's."""

import io
import time
from collections.abc import Iterable
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
