"""TensorBoard, with one run for the whole batch and one for each tower."""

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

from chatbot.config.attempts import TENSORBOARD
from chatbot.config.corpus import NONE
from chatbot.config.training import Settings
from chatbot.durable import write_file
from chatbot.evaluation.measures import Sample
from chatbot.training.reporting.tensorboard_pages import (
    LOSS,
    SECONDS,
    THROUGHPUT,
    Replies,
    hyperparameters_summary,
    layout_summary,
    step_graph,
    write_attention,
    write_embedding,
    write_histograms,
)
from chatbot.training.run import Run
from chatbot.training.validation import Validation

# TensorBoard's run for the values of the whole batch.
ALL_TOWERS = "all"
# The pages of curves have a section for each prefix of tags.
SECTIONS = {
    "optimisation": ("gradient_norm", "learning_rate", "skipped_updates"),
    "throughput": ("examples_per_s", "target_tokens_per_s", "input_wait", "padding", "tower_skew"),
}
TAGS = {name: f"{section}/{name}" for section, names in SECTIONS.items() for name in names}


class TensorBoard:
    """Writes the files of TensorBoard: a run with the tag `loss` for each tower, and one for the whole batch."""

    def __init__(self, settings: Settings, towers: Sequence[str], step: int, run: Run | None = None) -> None:
        """Open new files. TensorBoard forgets events after the checkpoint's step, which a killed run leaves."""
        self._run, self._records, self._replies = run, 0, Replies()
        folder = TENSORBOARD / settings.run.attempt
        self._folder = folder / ALL_TOWERS
        self._tower_curves = TowerCurves(folder, towers, step)
        for name, summary in (("layout", layout_summary()), ("settings", hyperparameters_summary(settings))):
            write_of_start(self._folder, name, tf.compat.v1.Event(summary=summary))
        self._writer = self._opened(step)

    def _opened(self, step: int) -> Any:
        """Return the writer of a new file, in which the steps after `step` begin anew.

        Readers take the files of a run in the order of their names. Those of one second differ by the number of the
        writer, in which 10 comes before 9: this file is of a later second than the others.
        """
        now = time.time()
        if any(file.name >= f"{EVENTS}{int(now)}" for file in self._folder.glob(f"{EVENTS}*")):
            time.sleep(1 - now % 1)
        writer = tf.summary.create_file_writer(str(self._folder))
        # tf.summary.create_file_writer has no purge_step, which this event is.
        tf.raw_ops.ImportEvent(writer=writer._resource, event=start_event(step).SerializeToString())
        return writer

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a logged step."""
        step = record["step"]
        if not self._folder.exists():  # removed during the run: the files that are open are gone
            self._writer = self._opened(step - 1)
        names = "losses", "target_tokens_per_s", "seconds"
        losses, rates, seconds = (record.get(f"tower_{name}", ()) for name in names)
        self._tower_curves.add(losses, rates, seconds, step)
        with self._writer.as_default():
            for name, value in record.items():
                if name != "step" and isinstance(value, int | float):  # not a list with a value of each tower
                    tf.summary.scalar(TAGS.get(name, name.replace(".", "/")), value, step)
        self._writer.flush()
        self._records += 1
        if self._run:
            self._show_model(self._run, step, "validation.nats_per_character" in record)

    def _show_model(self, run: Run, step: int, validated: bool) -> None:
        """Write what is due of the graph, the weights and the embedding; at a save, the weights are those saved."""
        settings, saved = run.settings, run.calendar.due(step).save
        # The graphs of several replicas are all traced after the second step.
        if self._records == 2 and (graph := step_graph(run.train_step)):
            write_of_start(self._folder, "graph", tf.compat.v1.Event(graph_def=graph.SerializeToString()))
        if saved or validated:
            write_embedding(self._folder, run.validator.model, run.data.vocabulary)
        if settings.run.histograms != NONE and (validated or (saved and run.data.validation is None)):
            with self._writer.as_default():
                write_histograms(run, run.validator.model, step)

    def validation(self, validation: Validation, samples: Sequence[Sample], step: int) -> None:
        """Write the replies to the samples, and their attention."""
        with self._writer.as_default():
            self._replies.write(samples, validation.replies, step)
            write_attention(validation.attention, step)

    def warning(self, text: str, step: int) -> None:
        """Write a warning for the Text page."""
        with self._writer.as_default():
            tf.summary.text("warnings", text, step)
        self._writer.flush()

    def close(self, stopped: str) -> None:
        """Write what is left, and close the files."""
        self._writer.close()
        self._tower_curves.flush()
        if self._run and stopped:
            write_embedding(self._folder, self._run.validator.model, self._run.data.vocabulary)


# TensorBoard reads the files of a run in the order of their names, those that contain "tfevents".
EVENTS = "events.out.tfevents."
# A file with this prefix holds what the present start of the run says of the whole run. It replaces that of the start
# before, and is read first.
OF_START = EVENTS + "0."
SCALAR = tf.compat.v1.SummaryMetadata(plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"))

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
    """Append summary values to a file of events; a new one begins with `start_event(first)`."""
    summary = tf.compat.v1.Summary(value=values)
    events = [tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary)]
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        events = [_version(), start_event(first), *events]
    with file.open("ab", buffering=0) as appended:
        appended.write(_joined(events))  # at once, so that TensorBoard never reads a part of a record


def write_of_start(folder: Path, name: str, event: Any) -> None:
    """Write an event of the whole run, in place of that of the start before. name: of the file, after OF_START."""
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

    With more than MOST_TOWERS_EACH_STEP towers, each has a point a minute, the mean of its values since the last one. A
    file is open only while it is written: many systems allow a process no more than 1,024 open files.
    """

    def __init__(self, folder: Path, towers: Sequence[str], step: int) -> None:
        """folder: of the attempt's TensorBoard runs. towers: the name of each run. step: that of the checkpoint."""
        name = f"{EVENTS}{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._files = [folder / tower / name for tower in towers]
        self._points: list[list[tuple[float, float]]] = [[] for _ in towers]  # since the last point: loss, throughput
        self._first = self._step = step
        self._written = -math.inf  # the time of the last point

    def add(self, losses: Sequence[float | None], rates: Sequence[float], seconds: Sequence[float], step: int) -> None:
        """Add the values of a logged step by tower; a loss is None for a tower without tokens. seconds: if measured."""
        for file, time_of_tower in zip(self._files, seconds, strict=False):
            append_values(file, [scalar(SECONDS, time_of_tower)], step, self._first)
        for points, loss, rate in zip(self._points, losses, rates, strict=False):
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
