"""The checkpoints of one attempt: weights, optimizer and progress, written atomically."""

import dataclasses
import math
import re
import shutil
from pathlib import Path

import tensorflow as tf

from chatbot.errors import UserError
from chatbot.model.saved import BEST, LAST, assign_weights, read_pointer, read_values, weights_of
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.attempt import write_json
from chatbot.training.variable_update.replica import Values


@dataclasses.dataclass
class Progress:
    """How far a run has come; stored with every checkpoint."""

    step: int = 0
    best_step: int = 0
    best_nats: float | None = None  # per character
    without_best: int = 0  # validations since the best
    validation: str | None = None  # fingerprint of the validation pairs of best_nats

    def measured_on(self, validation: str) -> None:
        """Set the fingerprint of the validation pairs. A different one resets the best validation."""
        if validation != self.validation:
            self.validation, self.best_nats, self.without_best = validation, None, 0

    def validated(self, nats: float) -> bool:
        """Record a validation at this step; return whether it is the best so far."""
        best = math.isfinite(nats) and (self.best_nats is None or nats < self.best_nats)
        if best:
            self.best_step, self.best_nats = self.step, nats
        self.without_best = 0 if best else self.without_best + 1
        return best


class Checkpoints:
    """Saves and restores the checkpoints of one attempt."""

    def __init__(self, directory: Path, model: Seq2Seq) -> None:
        self.directory = directory
        self._weights = weights_of(model)

    def restore(self, new: Values) -> tuple[Progress, Values]:
        """Load the last checkpoint into the model; return its progress and the state of the optimizer.

        new: the optimizer state of a new run, returned if there is no checkpoint. Raises UserError for a damaged
        attempt.
        """
        if not (self.directory / LAST).exists():
            return Progress(), new
        pointers = [read_pointer(path) for path in self._pointers()]
        prefix = self.directory / pointers[0].pop("checkpoint")
        kinds = {
            "step": int,
            "best_step": int,
            "best_nats": float | None,
            "without_best": int,
            "validation": str | None,
        }
        if kinds.keys() != pointers[0].keys() or not all(isinstance(pointers[0][k], kinds[k]) for k in kinds):
            raise UserError(f"{self.directory / LAST}: damaged; restore it from a backup, or use another --attempt")
        state = read_values(prefix, "optimizer", [value.shape for value in new])
        assign_weights(prefix, self._weights)
        return Progress(**pointers[0]), state

    def save(self, progress: Progress, state: Values, best: bool) -> None:
        """Write a checkpoint, and name it in `last`, and in `best` if it is the best.

        A pointer is written only after the files are complete; files are removed only when no pointer names them.
        Raises UserError when a weight is not finite, or the files cannot be written.
        """
        if not all(bool(tf.reduce_all(tf.math.is_finite(weight))) for weight in self._weights):
            raise UserError(
                f"a weight is not a number at step {progress.step}; the last checkpoint is kept: "
                "resume from it with a lower --learning-rate"
            )
        name = f"ckpt-{progress.step}"
        try:
            with tf.device("/CPU:0"):
                kept = [tf.Variable(value) for value in state]
            tf.train.Checkpoint(weights=self._weights, optimizer=kept).write(str(self.directory / name))
        except tf.errors.OpError as error:
            reason = error.message.split("\n")[0][:150]
            raise UserError(
                f"{self.directory / name}: cannot be written ({reason}); the previous checkpoint is kept: "
                "free some space and run the same command again"
            ) from None
        pointer = {"checkpoint": name, **dataclasses.asdict(progress)}
        if best:
            write_json(self.directory / BEST, pointer)
        write_json(self.directory / LAST, pointer)
        self._remove_unnamed()

    def load_best(self, progress: Progress) -> None:
        """Load the weights of the best checkpoint into the model, if there is one."""
        if (self.directory / BEST).exists() and progress.best_step != progress.step:
            best = read_pointer(self.directory / BEST)["checkpoint"]
            assign_weights(self.directory / best, self._weights)

    def _remove_unnamed(self) -> None:
        """Remove old checkpoints, and the folder ckpt-<step>_temp that a killed process leaves behind."""
        kept = {read_pointer(path)["checkpoint"] for path in self._pointers()}
        for path in self.directory.iterdir():
            found = re.match(r"ckpt-\d+(?=[._])", path.name)
            if found and (path.is_dir() or found[0] not in kept):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _pointers(self) -> list[Path]:
        return [p for p in (self.directory / LAST, self.directory / BEST) if p.exists()]
