"""The progress of a training run, such as its step and its best validation loss.

The progress is stored in the manifest of every checkpoint. The files `last` and `best`, which contain the name of the
last and the best checkpoint, store it, too.
"""

import dataclasses
import math
import operator
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import keras
import numpy as np
import tensorflow as tf

from chatbot.attempts.checkpoint import AT_END, DamagedError, check_vocabulary, manifest_path, read_pointer, step_of
from chatbot.attempts.settings import changed_values, stored_values
from chatbot.config.learning import LOWER_IS_BETTER, NATS
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.version import __version__

OTHER = "restore the right checkpoint from a backup, or use another --attempt"


@dataclasses.dataclass
class Progress:
    """The progress of a training run, which is stored with every checkpoint.

    Fields that are missing from a file get their default values. The fields should only be changed by the methods of
    this class.
    """

    step: int = 0
    best_step: int = 0
    best_nats: float | None = None  # nats per character at the best validation
    without_best: int = 0  # number of validations since the best one
    validation: str | None = None  # fingerprint of the validation pairs
    best_by: str = NATS  # the measure that selects the best checkpoint
    best_value: float | None = None  # the best value of this measure
    skipped_updates: int = 0  # number of updates skipped because of a non-finite loss or gradient
    skipped_in_a_row: int = 0  # number of consecutive skipped updates up to the current step
    rate_halvings: int = 0  # number of rollbacks, each of which halves the learning rate
    halved_rate: float | None = None  # the value of --learning-rate before any halving
    first_loss: float | None = None  # nats per token at the first logged step
    high_losses: int = 0  # number of consecutive logged losses far above the first one
    most_positions: int | None = None  # maximum tokens and padding per micro-batch, set after running out of memory
    logits: int | None = None  # maximum number of logits in memory at a time, set after running out of memory
    device_memory: int | None = None  # memory of the smallest device in bytes, for which both limits were found
    unvalidated: dict | None = None  # metrics of the current step, until the step is validated

    @property
    def recorded_step(self) -> int:
        """The last step whose metrics have been written."""
        return self.step - (self.unvalidated is not None)

    def copy_from(self, other: "Progress") -> None:
        """Copy all fields from another `Progress` object."""
        vars(self).update(vars(other))

    def set_step(self, step: int) -> None:
        """Set the number of the last step."""
        self.step = step

    def count_update(self, finite: bool, overflow: bool) -> None:
        """Update the counters of skipped updates after a training step.

        Args:
            finite: Whether the loss and the gradient were finite. If not, the update was skipped.
            overflow: Whether a float16 value overflowed. Such a step does not count towards `skipped_in_a_row`.
        """
        if finite:
            self.skipped_in_a_row = 0
        else:
            self.skipped_updates += 1
            self.skipped_in_a_row += not overflow

    def record_loss(self, loss: float, high: int) -> None:
        """Record the loss of a logged step.

        Args:
            loss: The loss in nats per token.
            high: The amount to add to `high_losses`; 0 if the loss is not far above the first one.
        """
        if self.first_loss is None:
            self.first_loss = loss
        self.high_losses = self.high_losses + high if high else 0

    def set_unvalidated(self, record: dict[str, Any] | None) -> None:
        """Set the metrics of a step that is not validated yet, or reset them to None."""
        self.unvalidated = record

    def set_device_memory(self, memory: int | None) -> None:
        """Set the memory of the smallest device in bytes. If it has changed, reset the memory limits."""
        if self.device_memory != memory:
            self.set_limits(None, None)
        self.device_memory = memory

    def set_limits(self, most_positions: int | None, logits: int | None) -> None:
        """Set the memory limits: the maximum tokens per micro-batch and the maximum number of logits."""
        self.most_positions = most_positions
        self.logits = logits

    def go_back_to(self, saved: "Progress", learning_rate: float) -> None:
        """Return to the progress of a checkpoint, and halve the learning rate. Counters and memory limits are kept."""
        new = dataclasses.replace(
            saved,
            most_positions=self.most_positions,
            logits=self.logits,
            device_memory=self.device_memory,
            rate_halvings=self.rate_halvings + 1,
            halved_rate=learning_rate,
            skipped_updates=self.skipped_updates,
            skipped_in_a_row=0,
        )
        if self.validation is not None:
            new.set_validation(self.validation, self.best_by)
        self.copy_from(new)

    def set_validation(self, validation: str, best_by: str) -> None:
        """Set how checkpoints are compared. If this has changed, reset the best result.

        Args:
            validation: The fingerprint of the validation pairs.
            best_by: The measure that selects the best checkpoint.
        """
        if (validation, best_by) != (self.validation, self.best_by):
            self.validation = validation
            self.best_by = best_by
            self.without_best = 0
            self.best_nats = self.best_value = None

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the value of --learning-rate. If the value has changed, undo the halvings."""
        if self.halved_rate not in (None, learning_rate):
            self.rate_halvings = 0
            self.halved_rate = None

    def record_validation(self, values: Mapping[str, float | None]) -> bool:
        """Record the validation results of the current step and return whether they are the best so far."""
        value = values[self.best_by]
        previous = self.best_value
        best = False
        if value is not None and math.isfinite(value):
            is_better = operator.lt if self.best_by in LOWER_IS_BETTER else operator.gt
            best = previous is None or is_better(value, previous)
        if best:
            self.best_step = self.step
            self.best_value = value
            self.best_nats = values[NATS]
        self.without_best = 0 if best else self.without_best + 1
        return best

    def copy_best(self, other: "Progress") -> None:
        """Copy the best validation result from another `Progress` object.

        If that result comes from different pairs or a different measure, reset the best result instead.
        """
        same = (other.validation, other.best_by) == (self.validation, self.best_by)
        source = other if same else Progress()
        self.best_step = source.best_step
        self.best_nats = source.best_nats
        self.best_value = source.best_value


def value_text(value: float, measure: str) -> str:
    """Format a value with its unit, such as "4.8846 nats per character" or "0.2130 relevance_at_1"."""
    return f"{value:.4f} {'nats per character' if measure == NATS else measure}"


def read_progress(path: Path) -> Progress:
    """Read the progress from `last` or `best`. Raises UserError if the file is damaged or from another version."""
    pointer = read_pointer(path)
    return _progress_from({name: pointer[name] for name in pointer.keys() - {"checkpoint", AT_END}}, path)


def progress_in(manifest: Mapping[str, Any], path: Path) -> Progress:
    """Return the progress in a checkpoint's manifest. Raises DamagedError if it is missing or invalid."""
    file = manifest_path(path)
    try:
        progress = _progress_from(dict(manifest["progress"]), file)
    except (UserError, ValueError, KeyError, TypeError):
        raise DamagedError(path, "damaged", f"no progress in {file.name}") from None
    if progress.step != step_of(path):
        raise DamagedError(path, "damaged", f"{file.name} belongs to step {progress.step:,}")
    return progress


def _progress_from(values: dict[str, Any], path: Path) -> Progress:
    types = get_type_hints(Progress)
    unknown = sorted(values.keys() - types)
    if unknown:
        raise UserError(
            f"{path}: written by another version of the program (it contains {unknown[0]!r:.40}); update the program, "
            "or use another --attempt"
        )
    if not all(isinstance(value, types[field]) for field, value in values.items()):
        raise UserError(f"{path}: damaged; restore it from a backup, or use another --attempt")
    return Progress(**values)


def versions() -> dict[str, str]:
    """Return the versions of the libraries that can change the results of a run."""
    return {
        "chatbot": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The settings and the data of a run. They are stored in its checkpoints, and checked when it is resumed."""

    settings: Settings
    data: dict[str, Any]

    def content(self) -> dict[str, Any]:
        """Return the manifest entries that `check` compares."""
        return {"data": self.data, "settings": stored_values(self.settings), "versions": versions()}

    def check(self, manifest: dict[str, Any], path: Path) -> list[str]:
        """Check that a checkpoint with this manifest can be resumed by this run.

        Returns:
            One line of text for each allowed difference.

        Raises:
            UserError: If the pairs, the vocabulary or a fixed setting differ.
            DamagedError: If the manifest is malformed.
        """
        file = manifest_path(path)
        changes = []
        data, settings, then = (manifest.get(name, {}) for name in ("data", "settings", "versions"))
        if not all(isinstance(part, dict) for part in (data, settings, then)):
            raise DamagedError(path, "damaged", f"{file.name} is malformed")
        check_vocabulary(manifest, self.data["vocabulary"], path)
        if data.get("fingerprint") != self.data["fingerprint"]:
            raise UserError(f"{file}: the checkpoint was trained on other pairs; {OTHER}")
        try:
            fixed, free = changed_values(settings, self.settings)
        except (UserError, TypeError) as error:
            raise DamagedError(path, "damaged", f"{file.name}: {error}") from None
        if fixed:
            raise UserError(f"{file}: the checkpoint was trained with other settings: {'; '.join(fixed)}; {OTHER}")
        if free:
            changes.append(f"Changed since step {step_of(path):,}: {'; '.join(free)}.")
        other_versions = [
            f"{name} {then[name]!s:.20} (now {now})"
            for name, now in versions().items()
            if then.get(name) not in (None, now)
        ]
        if other_versions:
            written = f"The checkpoint was written with {', '.join(other_versions)}"
            changes.append(f"{written}: results may differ in the last bits from a run with a single version.")
        return changes
