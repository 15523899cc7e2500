"""Writes metrics, replies and warnings for TensorBoard, and defines the layout of its charts."""

import io
import os
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalar
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from chatbot.config.attempts import TENSORBOARD
from chatbot.evaluation.measures import Sample

# The TensorBoard run that contains the metrics of the whole batch.
ALL_TOWERS = "all"
# Maps TensorBoard tags to metrics that have a value for each tower (replica of the model).
LOSS = "loss"
THROUGHPUT = "throughput/tower_target_tokens_per_s"
SECONDS = "throughput/tower_seconds"
TOWER_KEYS = {LOSS: "tower_losses", THROUGHPUT: "tower_target_tokens_per_s", SECONDS: "tower_seconds"}
# TensorBoard groups charts by the prefix of their tags.
SECTIONS = {
    "optimisation": ("gradient_norm", "learning_rate", "skipped_updates"),
    "throughput": ("examples_per_s", "target_tokens_per_s", "input_wait", "padding", "tower_skew"),
}
TAGS = {name: f"{section}/{name}" for section, names in SECTIONS.items() for name in names}
# The charts on the Custom Scalars page: titles and regular expressions. A chart shows all tags that start with a match.
RUN_CHARTS = {
    "Loss: the whole batch and every tower": ["loss$"],
    "Validation: nats per character": ["validation/nats_per_character$", "best/nats_per_character$"],
    "Target tokens/s of every tower": [f"{THROUGHPUT}$"],
    "Skew: largest tower over the mean, minus 1": ["throughput/tower_skew$"],
    "Padding: share of the positions": ["throughput/padding$"],
    "Input wait: share of the time": ["throughput/input_wait$"],
    "Learning rate": ["optimisation/learning_rate$"],
    "Gradient norm before clipping": ["optimisation/gradient_norm$"],
    "Skipped updates": ["optimisation/skipped_updates$"],
    "Seconds that every GPU takes for its share": [f"{SECONDS}$"],  # empty with fewer than two GPUs
}
REPLY_CHARTS = {
    "Overlap with the references: BLEU and chrF": ["validation/(bleu|chrf)$"],
    "Relevance to the question": ["validation/relevance_at_1$"],
    "Distinct tokens and characters": ["validation/distinct_"],
    "Share of the most common replies": ["validation/top"],
    "Entropy of the replies": ["validation/reply_entropy$"],
    "Tokens per reply": ["validation/mean_reply_tokens$"],
}


class TensorBoard:
    """Writes TensorBoard event files.

    Each tower (replica of the model) is a separate TensorBoard run with its own metrics. Another TensorBoard run has
    the metrics of the whole batch. The files of towers are closed after each write, because many systems limit a
    process to 1,024 open files.
    """

    def __init__(self, attempt: str, towers: Sequence[str], step: int) -> None:
        """Create the event files.

        Args:
            attempt: The name of the attempt.
            towers: The names of the towers, each of which becomes a TensorBoard run.
            step: The step from which the run continues. TensorBoard discards events of later steps in older files.
        """
        folder = TENSORBOARD / attempt
        self._writer = tf.summary.create_file_writer(str(folder / ALL_TOWERS))
        with self._writer.as_default():
            tf.summary.experimental.write_raw_pb(charts().SerializeToString(), step=0)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._files_of_towers = [folder / tower / name for tower in towers]
        for file in self._files_of_towers:
            file.parent.mkdir(parents=True, exist_ok=True)
            append_event(file, file_version="brain.Event:2")
        self.begin_after(step)

    def begin_after(self, step: int) -> None:
        """Make TensorBoard discard existing events of later steps, because a resumed run repeats these steps."""
        log = SessionLog(status=SessionLog.START)
        event = Event(wall_time=time.time(), step=step + 1, session_log=log)
        # This event tells TensorBoard to discard the events. TensorFlow's writer has no parameter for it.
        tf.raw_ops.ImportEvent(writer=self._writer._resource, event=event.SerializeToString())
        for file in self._files_of_towers:
            append_event(file, step=step + 1, session_log=log)

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a logged step."""
        step = record["step"]
        for i, file in enumerate(self._files_of_towers):
            summary = Summary()
            for tag, key in TOWER_KEYS.items():
                if key in record and record[key][i] is not None:  # None if the tower's part of the batch was empty
                    summary.MergeFrom(scalar_pb(tag, record[key][i]))
            append_event(file, step=step, summary=summary)
        summary = Summary()
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):  # skips lists of values per tower
                summary.MergeFrom(scalar_pb(TAGS.get(name, name.replace(".", "/")), value))
        with self._writer.as_default():
            tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step)
        self._writer.flush()

    def replies(self, samples: Sequence[Sample], replies: Sequence[str], step: int) -> None:
        """Write a table of questions, replies and references to the Text page."""
        rows = [(sample.question, reply, sample.answer) for sample, reply in zip(samples, replies, strict=True)]
        with self._writer.as_default():
            tf.summary.text("replies", table([("question", "reply", "reference"), ("---",) * 3, *rows]), step)

    def warning(self, text: str, step: int) -> None:
        """Write a warning to the Text page."""
        with self._writer.as_default():
            tf.summary.text("warnings", text, step)
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file of the whole batch."""
        self._writer.close()


def append_event(file: Path, **content: Any) -> None:
    """Append an event to a file with a single write, so that TensorBoard never reads an incomplete event."""
    event = io.BytesIO()
    RecordWriter(event).write(Event(wall_time=time.time(), **content).SerializeToString())
    with file.open("ab", buffering=0) as appended:
        appended.write(event.getvalue())


def table(rows: Iterable[Sequence[str]]) -> str:
    """Format rows of cells as a Markdown table."""
    return "\n".join(" | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in rows)


def charts() -> Any:
    """Return the summary that defines the chart layout of the Custom Scalars page."""
    pages = {"Run": RUN_CHARTS, "Validation: measures of replies": REPLY_CHARTS}
    categories = [
        layout_pb2.Category(
            title=title,
            chart=[
                layout_pb2.Chart(title=name, multiline=layout_pb2.MultilineChartContent(tag=tags))
                for name, tags in charts.items()
            ],
        )
        for title, charts in pages.items()
    ]
    return custom_scalar.pb(layout_pb2.Layout(category=categories))
