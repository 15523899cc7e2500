"""What TensorBoard's pages show, apart from curves."""

import collections
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

# The tags of a tower.
LOSS, THROUGHPUT, SECONDS = "loss", "throughput/tower_target_tokens_per_s", "throughput/tower_seconds"

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
    "Seconds that every GPU takes for its share": [f"{SECONDS}$"],
    "Skew: largest tower over the mean, minus 1": ["throughput/tower_skew$"],
    "Padding: share of the positions": ["throughput/padding$"],
    "Input wait: share of the time": ["(throughput/)?input_wait$"],
    "Learning rate": ["(optimisation/)?learning_rate$"],
    "Gradient norm before clipping": ["(optimisation/)?gradient_norm$"],
    "Skipped updates": ["optimisation/skipped_updates$"],
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


# The Text page: replies to the sample questions, by validation and by question.

# The rows of a history: the last validations.
MOST_ROWS = 100


class Replies:
    """Writes a table of all questions at each validation, and for each question a table of its replies so far."""

    def __init__(self) -> None:
        self._history: dict[int, collections.deque[tuple[str, str]]] = {}  # step and reply, by the number of a question

    def write(self, samples: Sequence[Sample], replies: Sequence[str], step: int) -> None:
        """Write the replies of a validation, with the default writer."""
        rows = [(sample.question, reply, sample.answer) for sample, reply in zip(samples, replies, strict=True)]
        tf.summary.text("replies", _table(("question", "reply", "reference"), rows), step)
        for number, (question, reply, reference) in enumerate(rows, 1):
            history = self._history.setdefault(number, collections.deque(maxlen=MOST_ROWS))
            history.appendleft((f"{step:,}", reply))
            head = _table(("question", "reference"), [(question, reference)])
            tf.summary.text(f"reply_history/{number}", f"{head}\n\n{_table(('step', 'reply'), history)}", step)


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
    towers, _ = update.compute_all_gradients(prepared)
    shape = model.embedding.embeddings.shape
    tokens = sum(float(sums.weight) for sums in towers)
    gradients = [sum(map(np.asarray, terms)) for terms in zip(*(sums.others for sums in towers), strict=True)]
    embedding = sum(np.asarray(dense(sums.projection, sums.rows, prepared.used, shape)) for sums in towers)
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
