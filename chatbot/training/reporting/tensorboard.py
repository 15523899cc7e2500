"""TensorBoard, with one run for the whole batch and one for each tower."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from chatbot.config.attempts import TENSORBOARD
from chatbot.config.training import Settings
from chatbot.evaluation.samples import Sample
from chatbot.training.reporting.event_files import remove_events_after, write_of_start
from chatbot.training.reporting.tensorboard_pages.attention import write_attention
from chatbot.training.reporting.tensorboard_pages.custom_scalars import layout_summary
from chatbot.training.reporting.tensorboard_pages.hyperparameters import hyperparameters_summary
from chatbot.training.reporting.tower_curves import TowerCurves
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

    def __init__(self, settings: Settings, towers: Sequence[str], step: int) -> None:
        """towers: their names. step: that of the checkpoint; events of later steps, which a killed run leaves, go."""
        folder = TENSORBOARD / settings.run.attempt
        folder.mkdir(parents=True, exist_ok=True)
        for run in folder.iterdir():
            remove_events_after(run, step)
        self._tower_curves = TowerCurves(folder, towers)
        for name, summary in (("layout", layout_summary()), ("settings", hyperparameters_summary(settings))):
            write_of_start(folder / ALL_TOWERS, name, tf.compat.v1.Event(summary=summary))
        self._writer = tf.summary.create_file_writer(str(folder / ALL_TOWERS))

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a logged step."""
        step = record["step"]
        self._tower_curves.add(record.get("tower_losses", ()), record.get("tower_target_tokens_per_s", ()), step)
        with self._writer.as_default():
            for name, value in record.items():
                if name != "step" and isinstance(value, int | float):  # not a list with a value of each tower
                    tf.summary.scalar(TAGS.get(name, name.replace(".", "/")), value, step)
        self._writer.flush()

    def validation(self, validation: Validation, samples: Sequence[Sample], step: int) -> None:
        """Write the replies to the samples, and their attention."""
        self._replies(samples, validation.replies, step)
        with self._writer.as_default():
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

    def _replies(self, samples: Sequence[Sample], replies: Sequence[str], step: int) -> None:
        """Write sample replies and the reference answers as a table for the Text page."""
        rows = [(sample.question, reply, sample.answer) for sample, reply in zip(samples, replies, strict=True)]
        cells = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
        table = "\n".join(["question | reply | reference", "--- | --- | ---", *cells])
        with self._writer.as_default():
            tf.summary.text("replies", table, step)
