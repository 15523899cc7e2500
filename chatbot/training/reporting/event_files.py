"""TensorBoard's event files, written and shortened without a writer of TensorFlow's."""

import io
import time
from collections.abc import Iterable, Iterator
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


def append_values(file: Path, values: Iterable[Any], step: int) -> None:
    """Append summary values to a file of events, which is created if it does not exist."""
    summary = tf.compat.v1.Summary(value=values)
    events = [tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary)]
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        events.insert(0, _version())
    with file.open("ab", buffering=0) as appended:
        appended.write(_joined(events))  # at once, so that TensorBoard never reads a part of a record


def write_of_start(folder: Path, name: str, event: Any) -> None:
    """Write an event of the whole run, in place of that of the start before.

    folder: of a TensorBoard run; it is created. name: of the file, after OF_START.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / f"{OF_START}{name}", _joined([_version(), event]))


def remove_events_after(folder: Path, step: int) -> None:
    """Remove the events after this step from the folder of a TensorBoard run.

    The start of a session in the event stream would not suffice: TensorBoard's default reader ignores it.
    """
    files = sorted(file for file in folder.glob(f"{EVENTS}*") if not file.name.startswith(OF_START))
    records = [record for file in files for record in _records(file.read_bytes())]
    kept = [record for record in records if tf.compat.v1.Event.FromString(record[12:-4]).step <= step]
    if len(kept) == len(records):
        return
    write_file(files[0], b"".join(kept))
    for file in files[1:]:
        file.unlink()


def _version() -> Any:
    return tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2")


def _joined(events: Iterable[Any]) -> bytes:
    """Return the content of a file of these events."""
    content = io.BytesIO()
    for event in events:
        RecordWriter(content).write(event.SerializeToString())
    return content.getvalue()


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a TFRecord file, up to one that was cut off when the run was killed.

    A record is the length of its content in 8 bytes, the length's checksum in 4, the content, and its checksum in 4.
    Reading them with tf.data takes ten times as long.
    """
    start = 0
    while start + 8 <= len(data):
        end = start + int.from_bytes(data[start : start + 8], "little") + 16
        if end > len(data):
            return
        yield data[start:end]
        start = end
