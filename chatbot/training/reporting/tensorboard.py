"""TensorBoard, with one run for the whole batch and one for each tower."""

import io
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorboard.summary.writer.record_writer import RecordWriter

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
# The tags of a tower's run, and the keys of a record with a value of each tower.
OF_TOWERS = {LOSS: "tower_losses", THROUGHPUT: "tower_target_tokens_per_s", SECONDS: "tower_seconds"}
# TensorBoard reads the files of a run in the order of their names, those that contain "tfevents".
EVENTS = "events.out.tfevents."
# A file with this prefix holds what the present start of the run says of the whole run. It replaces that of the start
# before, and is read first.
OF_START = EVENTS + "0."
SCALAR = tf.compat.v1.SummaryMetadata(plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"))


class TensorBoard:
    """Writes the files of TensorBoard: a run with the tag `loss` for each tower, and one for the whole batch.

    A tower's file is open only while it is written: many systems allow a process no more than 1,024 open files.
    """

    def __init__(self, settings: Settings, towers: Sequence[str], step: int, run: Run | None = None) -> None:
        """Begin new files after this step. towers: their names."""
        self._run, self._records, self._replies = run, 0, Replies()
        folder = TENSORBOARD / settings.run.attempt
        self._folder = folder / ALL_TOWERS
        for name, summary in (("layout", layout_summary()), ("settings", hyperparameters_summary(settings))):
            write_of_start(self._folder, name, tf.compat.v1.Event(summary=summary))
        self._writer = tf.summary.create_file_writer(str(self._folder))
        name = f"{EVENTS}{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._files = [folder / tower / name for tower in towers]
        for file in self._files:
            file.parent.mkdir(parents=True, exist_ok=True)
            append_event(file, version_event())
        self.begin_after(step)

    def begin_after(self, step: int) -> None:
        """Let readers forget what this and earlier files have of later steps, as after a killed run."""
        log = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        event = tf.compat.v1.Event(wall_time=time.time(), step=step + 1, session_log=log)
        # tf.summary.create_file_writer has no purge_step, which this event is.
        tf.raw_ops.ImportEvent(writer=self._writer._resource, event=event.SerializeToString())
        for file in self._files:
            append_event(file, event)

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a logged step."""
        step = record["step"]
        for i, file in enumerate(self._files):
            of_tower = {tag: record[key][i] for tag, key in OF_TOWERS.items() if key in record}
            # The loss of a tower without tokens is None.
            values = [scalar(tag, value) for tag, value in of_tower.items() if value is not None]
            summary = tf.compat.v1.Summary(value=values)
            append_event(file, tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary))
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
        if self._run and stopped:
            write_embedding(self._folder, self._run.validator.model, self._run.data.vocabulary)


def scalar(tag: str, value: float) -> Any:
    """Return the value of a summary that shows a scalar."""
    return tf.compat.v1.Summary.Value(tag=tag, tensor=tf.make_tensor_proto(value, tf.float32), metadata=SCALAR)


def append_event(file: Path, event: Any) -> None:
    """Append an event to a file at once, so that TensorBoard never reads a part of it."""
    with file.open("ab", buffering=0) as appended:
        appended.write(_content(event))


def write_of_start(folder: Path, name: str, event: Any) -> None:
    """Write an event of the whole run, in place of that of the start before. name: of the file, after OF_START."""
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / f"{OF_START}{name}", _content(version_event(), event))


def version_event() -> Any:
    """Return the event that each file begins with."""
    return tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2")


def _content(*events: Any) -> bytes:
    """Return events as they are in a file."""
    content = io.BytesIO()
    for event in events:
        RecordWriter(content).write(event.SerializeToString())
    return content.getvalue()
