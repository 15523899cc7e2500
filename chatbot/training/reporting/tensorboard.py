"""TensorBoard: curves of the whole batch and of each tower, all charts of a run on one page, replies and warnings."""

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

# TensorBoard's run for the values of the whole batch.
ALL_TOWERS = "all"
# The tags of a tower's run, and the keys of a record with a value of each tower.
LOSS = "loss"
THROUGHPUT = "throughput/tower_target_tokens_per_s"
SECONDS = "throughput/tower_seconds"
OF_TOWERS = {LOSS: "tower_losses", THROUGHPUT: "tower_target_tokens_per_s", SECONDS: "tower_seconds"}
# The pages of curves have a section for each prefix of tags.
SECTIONS = {
    "optimisation": ("gradient_norm", "learning_rate", "skipped_updates"),
    "throughput": ("examples_per_s", "target_tokens_per_s", "input_wait", "padding", "tower_skew"),
}
TAGS = {name: f"{section}/{name}" for section, names in SECTIONS.items() for name in names}
# The Custom Scalars page: the title of each chart, and the tags of its curves as regular expressions that TensorBoard
# matches from the start of a tag. Every run with such a tag has a curve: the whole batch, each tower, or all.
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
    "Seconds that every GPU takes for its share": [f"{SECONDS}$"],  # of several GPUs, and else empty
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
    """Writes the files of TensorBoard: a run with the tag `loss` for each tower, and one for the whole batch.

    A tower's file is open only while it is written: many systems allow a process no more than 1,024 open files.
    """

    def __init__(self, attempt: str, towers: Sequence[str], step: int) -> None:
        """Begin new files after this step. towers: their names."""
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
        """Let readers forget what this and earlier files have of later steps, as after a killed run."""
        log = SessionLog(status=SessionLog.START)
        event = Event(wall_time=time.time(), step=step + 1, session_log=log)
        # tf.summary.create_file_writer has no purge_step, which this event is.
        tf.raw_ops.ImportEvent(writer=self._writer._resource, event=event.SerializeToString())
        for file in self._files_of_towers:
            append_event(file, step=step + 1, session_log=log)

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a logged step."""
        step = record["step"]
        for i, file in enumerate(self._files_of_towers):
            summary = Summary()
            for tag, key in OF_TOWERS.items():
                if key in record and record[key][i] is not None:  # the loss of a tower without tokens is
                    summary.MergeFrom(scalar_pb(tag, record[key][i]))
            append_event(file, step=step, summary=summary)
        summary = Summary()
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):  # not a list with a value of each tower
                summary.MergeFrom(scalar_pb(TAGS.get(name, name.replace(".", "/")), value))
        with self._writer.as_default():
            tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step)
        self._writer.flush()

    def replies(self, samples: Sequence[Sample], replies: Sequence[str], step: int) -> None:
        """Write a table of questions with their replies for the Text page."""
        rows = [(sample.question, reply, sample.answer) for sample, reply in zip(samples, replies, strict=True)]
        with self._writer.as_default():
            tf.summary.text("replies", table([("question", "reply", "reference"), ("---",) * 3, *rows]), step)

    def warning(self, text: str, step: int) -> None:
        """Write a warning for the Text page."""
        with self._writer.as_default():
            tf.summary.text("warnings", text, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left, and close the file of the whole batch."""
        self._writer.close()


def append_event(file: Path, **content: Any) -> None:
    """Append an event to a file at once, so that TensorBoard never reads a part of it. content: fields of the event."""
    event = io.BytesIO()
    RecordWriter(event).write(Event(wall_time=time.time(), **content).SerializeToString())
    with file.open("ab", buffering=0) as appended:
        appended.write(event.getvalue())


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(" | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in rows)


def charts() -> Any:
    """Return the summary that holds the charts of the Custom Scalars page."""
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
