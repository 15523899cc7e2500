"""The checkpoints of one attempt: weights, optimizer and progress, written atomically."""

import dataclasses
from pathlib import Path

import keras
import tensorflow as tf

from chatbot.model.saved import BEST, LAST, read_pointer, read_variables, weights_of
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.attempt import write_json


@dataclasses.dataclass
class Progress:
    """How far a run has come; saved with every checkpoint."""

    step: int = 0
    best_step: int = 0
    best_nats: float | None = None  # per character
    without_best: int = 0  # validations since the best

    def validated(self, nats: float) -> bool:
        """Take note of a validation at this step; True when it is the best so far."""
        best = self.best_nats is None or nats < self.best_nats
        if best:
            self.best_step, self.best_nats = self.step, nats
        self.without_best = 0 if best else self.without_best + 1
        return best


class Checkpoints:
    """Saves and restores one attempt."""

    def __init__(self, directory: Path, model: Seq2Seq, optimizer: keras.Optimizer) -> None:
        self.directory = directory
        self._weights = weights_of(model)
        self._slots = [variable.value for variable in optimizer.variables]

    def restore(self) -> Progress:
        """The state of the last checkpoint, weights and optimizer in place; a new Progress when there is none.

        Raises UserError for a damaged attempt.
        """
        if not (self.directory / LAST).exists():
            return Progress()
        pointer = read_pointer(self.directory / LAST)
        read_variables(self.directory / pointer["checkpoint"], "weights", self._weights)
        read_variables(self.directory / pointer["checkpoint"], "slots", self._slots)
        names = {field.name for field in dataclasses.fields(Progress)}
        return Progress(**{name: value for name, value in pointer.items() if name in names})

    def save(self, progress: Progress, best: bool) -> None:
        """Write a checkpoint, then name it the last one, and the best one if it is.

        A name is written only after its files are whole, and files go only when no name is left.
        """
        name = f"ckpt-{progress.step}"
        tf.train.Checkpoint(weights=self._weights, slots=self._slots).write(str(self.directory / name))
        pointer = {"checkpoint": name, **dataclasses.asdict(progress)}
        if best:
            write_json(self.directory / BEST, pointer)
        write_json(self.directory / LAST, pointer)
        kept = {read_pointer(path)["checkpoint"] for path in self._pointers()}
        for file in self.directory.glob("ckpt-*"):
            if file.name.split(".")[0] not in kept:
                file.unlink()

    def load_best(self, progress: Progress) -> None:
        """Put the weights of the best checkpoint into the model, where validation chose one."""
        if (self.directory / BEST).exists() and progress.best_step != progress.step:
            best = read_pointer(self.directory / BEST)["checkpoint"]
            read_variables(self.directory / best, "weights", self._weights)

    def _pointers(self) -> list[Path]:
        return [p for p in (self.directory / LAST, self.directory / BEST) if p.exists()]
