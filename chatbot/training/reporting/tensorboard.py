"""TensorBoard, with one run for the whole batch and one for each tower."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.attempts import TENSORBOARD
from chatbot.config.training import Settings
from chatbot.evaluation.samples import Sample
from chatbot.inference.attention import WordAttention
from chatbot.training.reporting.tower_curves import TowerCurves
from chatbot.training.validator import Validation

# TensorBoard's run for the values of the whole batch.
ALL_TOWERS = "all"
# The width of a cell of a heat map in pixels, and the colour of the weight 1.
CELL, BLUE = 24, (8, 48, 107)


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
            _remove_events_after(run, step)
        self._tower_curves = TowerCurves(folder, towers)
        self._writer = tf.summary.create_file_writer(str(folder / ALL_TOWERS))

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a logged step."""
        step = record["step"]
        self._tower_curves.add(record.get("tower_losses", ()), step)
        with self._writer.as_default():
            for name, value in record.items():
                if name not in ("step", "tower_losses") and value is not None:
                    tf.summary.scalar(name.replace(".", "/"), value, step)
        self._writer.flush()

    def validation(self, validation: Validation, samples: Sequence[Sample], step: int) -> None:
        """Write the replies to the samples, and their attention."""
        self._replies(samples, validation.replies, step)
        self._attention(validation.attention, step)

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

    def _attention(self, samples: Sequence[WordAttention], step: int) -> None:
        """Write the attention of each sample reply as an image, and its words as a text.

        A row of the image is a word of the reply, a column a word of the question; dark blue is 1.
        """
        with self._writer.as_default():
            for number, (question, reply, weights) in enumerate(samples, 1):
                tf.summary.image(f"attention/{number}", heat_map(weights)[None], step)
                words = (" ".join(f"{i} `{word}`" for i, word in enumerate(side, 1)) for side in (reply, question))
                text = "rows: {}\n\ncolumns: {}".format(*words)
                tf.summary.text(f"attention_words/{number}", text, step)


def heat_map(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """weights [rows, columns], 0 to 1 -> an image of square cells, [CELL rows, CELL columns, 3], from white to blue."""
    colours = 255 + weights[..., None] * (np.array(BLUE) - 255)  # [rows, columns, 3]
    return np.repeat(np.repeat(colours, CELL, axis=0), CELL, axis=1).round().astype(np.uint8)


def _remove_events_after(folder: Path, step: int) -> None:
    """Remove the events after this step from the folder of a TensorBoard run.

    The start of a session in the event stream would not suffice: TensorBoard's default reader ignores it.
    """
    files = sorted(folder.glob("events.out.tfevents.*"))
    records = [record for file in files for record in _records(file.read_bytes())]
    kept = [record for record in records if tf.compat.v1.Event.FromString(record[12:-4]).step <= step]
    if len(kept) == len(records):
        return
    part = folder / "kept.part"
    part.write_bytes(b"".join(kept))
    part.replace(files[0])
    for file in files[1:]:
        file.unlink()


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
