"""TensorBoard, with one run for the whole batch and one for each tower."""

import io
import os
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalar
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.summary.writer.record_writer import RecordWriter

from chatbot.config.attempts import TENSORBOARD
from chatbot.config.corpus import NONE
from chatbot.config.run import ALL
from chatbot.config.stored import storable
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import SPECIALS, Vocabulary
from chatbot.durable import write_file
from chatbot.evaluation.measures import Sample
from chatbot.inference.text_responder import WordAttention
from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.training.gradients import dense
from chatbot.training.run import Run
from chatbot.training.share import Prepared
from chatbot.training.step import Graph, Synchronous
from chatbot.training.validation import Validation

# The tags of a tower.
LOSS, THROUGHPUT, SECONDS = "loss", "throughput/tower_target_tokens_per_s", "throughput/tower_seconds"
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
        self._run, self._records = run, 0
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
            write_replies(samples, validation.replies, step)
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


# The Graphs page: the graph of the training step.

# Larger constants, in bytes, are left out, since the page shows the operations; a larger graph is left out as a whole.
LARGEST_CONSTANT, LARGEST_GRAPH = 1024, 50_000_000


def step_graph(train_step: Any) -> Any:
    """Return the GraphDef of the largest traced graph of a variable update, a whole step; None if it is too large."""
    traced = [value.traced for value in vars(train_step).values() if isinstance(value, Graph) and value.traced]
    if not traced:
        return None
    graph = max(traced, key=lambda concrete: len(concrete.graph.get_operations())).graph
    definition = graph.as_graph_def(add_shapes=True)
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        for node in nodes:
            if node.op == "Const" and node.attr["value"].ByteSize() > LARGEST_CONSTANT:
                node.attr["value"].tensor.Clear()
    return definition if definition.ByteSize() <= LARGEST_GRAPH else None


# The Custom Scalars page: the charts by which a run is judged, on one page.

# The title of each chart, and the tags of its curves as regular expressions that TensorBoard matches from the start of
# a tag. Every run with such a tag has a curve: the whole batch, each tower, or all.
RUN_CHARTS = {
    "Loss: the whole batch and every tower": ["loss$"],
    "Validation: nats per character": ["validation/nats_per_character$", "best/nats_per_character$"],
    "Target tokens/s of every tower": [f"{THROUGHPUT}$"],
    "Skew: largest tower over the mean, minus 1": ["throughput/tower_skew$"],
    "Padding: share of the positions": ["throughput/padding$"],
    "Input wait: share of the time": ["(throughput/)?input_wait$"],
    "Learning rate": ["(optimisation/)?learning_rate$"],
    "Gradient norm before clipping": ["(optimisation/)?gradient_norm$"],
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


def layout_summary() -> Any:
    """Return the summary that holds the layout of the page."""
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


# The HParams page: the settings of all attempts side by side, with their losses and validations.


def hyperparameters_summary(settings: Settings) -> Any:
    """Return the summary that makes a TensorBoard run a session of the page, with the settings that are given."""
    values = {
        name: " ".join(map(str, value)) if isinstance(value, tuple | list) else value
        for name, value in storable(settings).items()
        if value not in (None, ()) and name != "attempt"
    }
    summary = hparams.hparams_pb(values, trial_id=settings.run.attempt)
    return tf.compat.v1.Summary.FromString(summary.SerializeToString())  # from TensorBoard's class to TensorFlow's


# The Text page: replies to the sample questions.


def write_replies(samples: Sequence[Sample], replies: Sequence[str], step: int) -> None:
    """Write a table of all questions with the replies of a validation, with the default writer."""
    rows = [(sample.question, reply, sample.answer) for sample, reply in zip(samples, replies, strict=True)]
    tf.summary.text("replies", _table(("question", "reply", "reference"), rows), step)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    cells = [" | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join([" | ".join(head), " | ".join("---" for _ in head), *cells])


# The Images page and the Text page: the attention of replies as images, with their words as texts.

# The width of a cell of a heat map in pixels, and the colour of the weight 1.
CELL, BLUE = 24, (8, 48, 107)


def write_attention(samples: Sequence[WordAttention], step: int) -> None:
    """Write the attention of each reply as an image, a row for a word of it, and the words as a text."""
    for number, (question, reply, weights) in enumerate(samples, 1):
        tf.summary.image(f"reply_attention/{number}", heat_map(weights)[None], step)
        words = (" ".join(f"{i} `{word}`" for i, word in enumerate(side, 1)) for side in (reply, question))
        text = "rows: {}\n\ncolumns: {}".format(*words)
        tf.summary.text(f"reply_attention_words/{number}", text, step)


def heat_map(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """weights [rows, columns], 0 to 1 -> an image of square cells, [CELL rows, CELL columns, 3], from white to blue."""
    colours = 255 + weights[..., None] * (np.array(BLUE) - 255)  # [rows, columns, 3]
    return np.repeat(np.repeat(colours, CELL, axis=0), CELL, axis=1).round().astype(np.uint8)


# The Projector page: the embedding of the most frequent words.

MOST_WORDS, MOST_BYTES = 10_000, 10_000_000
PROJECTOR_CONFIG = """embeddings {{
  tensor_name: "embedding"
  tensor_path: "embedding.bytes"
  tensor_shape: {}
  tensor_shape: {}
  metadata_path: "words.tsv"
}}
"""


def write_embedding(folder: Path, model: Seq2Seq, vocabulary: Vocabulary) -> None:
    """Write the vectors of the most frequent words, at most MOST_BYTES, and the words, to a folder of TensorBoard."""
    width = model.embedding.embeddings.shape[1]
    first = len(SPECIALS)
    last = min(vocabulary.first_mark, first + MOST_WORDS, first + max(1, MOST_BYTES // (4 * width)))
    vectors = np.array(model.embedding.embeddings.value[first:last], np.float32)  # [words, width]
    # TensorBoard takes a file for binary if it is not UTF-8. The byte 255 in the lowest bits of the first number makes
    # sure of it.
    vectors.view(np.uint8)[0, 0] = 255
    contents = {
        "embedding.bytes": vectors.tobytes(),
        "words.tsv": "".join(f"{word}\n" for word in vocabulary.tokens[first:last]).encode(),
        "projector_config.pbtxt": PROJECTOR_CONFIG.format(*vectors.shape).encode(),
    }
    for name, content in contents.items():
        write_file(folder / name, content)


# The Histograms page: the weights and gradients of each layer (--histograms).


def write_histograms(run: Run, model: Seq2Seq, step: int) -> None:
    """Write the weights, with --histograms all also this machine's gradients of the step's batch at these weights."""
    names = names_of(model)
    for variable in model.trainable_variables:
        tf.summary.histogram(f"weights/{names[id(variable)]}", variable.value, step)
    if run.settings.run.histograms != ALL:
        return
    update: Any = run.train_step
    batch = next(run.batches.from_step(step - 1, update.num_shares, run.team.machine, run.team.machines))
    gradients = mean_gradients(update, model, update.prepare(batch, step - 1))
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        tf.summary.histogram(f"weight_gradients/{names[id(variable)]}", gradient, step)


def mean_gradients(update: Synchronous, model: Seq2Seq, prepared: Prepared) -> list[npt.NDArray[Any]]:
    """Return the mean gradient per target token of a batch, by variable. No weight changes, nothing is exchanged."""
    towers, _, (used, *_), _ = update.compute_gradients(update.preparation.copied(prepared))
    shape = model.embedding.embeddings.shape
    tokens = sum(float(sums.weight) for sums in towers)
    gradients = [sum(map(np.asarray, terms)) for terms in zip(*(sums.groups for sums in towers), strict=True)]
    embedding = sum(np.asarray(dense(sums.projection, sums.rows, used, shape)) for sums in towers)
    gradients.insert(embedding_index(model), embedding)
    return [np.asarray(gradient) / tokens for gradient in gradients]


def names_of(model: Seq2Seq) -> dict[int, str]:
    """Return the path of each variable by its id(), as decoder/attention/key/kernel. Lists are counted from 1."""
    names: dict[int, str] = {}

    def visit(layer: keras.Layer, path: str) -> None:
        for name, value in vars(layer).items():
            if name.startswith("_"):
                continue
            items = (
                {f"{name}_{i}": item for i, item in enumerate(value, 1)} if isinstance(value, list) else {name: value}
            )
            for item_name, item in items.items():
                if isinstance(item, keras.Layer):
                    visit(item, f"{path}{item_name}/")
        for variable in layer.trainable_variables:
            names.setdefault(id(variable), path + variable.name)

    visit(model, "")
    return names
