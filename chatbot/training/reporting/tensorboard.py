"""TensorBoard, with one run for the whole batch and one for each tower."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from chatbot.config.attempts import TENSORBOARD
from chatbot.config.corpus import NONE
from chatbot.config.training import Settings
from chatbot.evaluation.measures import Sample
from chatbot.training.reporting.event_files import TowerCurves, start_event, write_of_start
from chatbot.training.reporting.tensorboard_pages import (
    Replies,
    hyperparameters_summary,
    layout_summary,
    step_graph,
    write_attention,
    write_embedding,
    write_histograms,
)
from chatbot.training.run import Run
from chatbot.training.validator import Validation

# TensorBoard's run for the values of the whole batch.
ALL_TOWERS = "all"
# The pages of curves have a section for each prefix of tags.
SECTIONS = {
    "optimisation": ("gradient_norm", "learning_rate", "skipped_updates"),
    "throughput": ("examples_per_s", "target_tokens_per_s", "input_wait", "padding", "tower_skew"),
}
TAGS = {name: f"{section}/{name}" for section, names in SECTIONS.items() for name in names}


class TensorBoard:
    """Writes the files of TensorBoard.

    Each tower has a separate run with the tag `loss`, and the whole batch has another: one chart shows all. With many
    towers, theirs have fewer points (`TowerCurves`).
    """

    def __init__(self, settings: Settings, towers: Sequence[str], step: int, run: Run | None = None) -> None:
        """Open new files. TensorBoard forgets events of later steps than the checkpoint's, which a killed run leaves.

        towers: their names. step: that of the checkpoint. run: for its graph, weights and embedding.
        """
        self._run, self._records, self._replies = run, 0, Replies()
        folder = TENSORBOARD / settings.run.attempt
        self._folder = folder / ALL_TOWERS
        self._tower_curves = TowerCurves(folder, towers, step)
        for name, summary in (("layout", layout_summary()), ("settings", hyperparameters_summary(settings))):
            write_of_start(self._folder, name, tf.compat.v1.Event(summary=summary))
        self._writer = self._opened(step)

    def _opened(self, step: int) -> Any:
        """Return the writer of a new file, in which the steps after `step` begin anew."""
        writer = tf.summary.create_file_writer(str(self._folder))
        # tf.summary.create_file_writer has no purge_step, which this event is.
        tf.raw_ops.ImportEvent(writer=writer._resource, event=start_event(step).SerializeToString())
        return writer

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a logged step."""
        step = record["step"]
        if not self._folder.exists():  # removed during the run: the files that are open are gone
            self._writer = self._opened(step - 1)
        losses, rates, seconds = (
            record.get(f"tower_{name}", ()) for name in ("losses", "target_tokens_per_s", "seconds")
        )
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
        """Write what is due of the graph, the weights and the embedding.

        At a save, the weights of the model are those that are saved.
        """
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
