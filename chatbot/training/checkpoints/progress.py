"""What a checkpoint says beside its tensors: how far the run had come, and what it is trained with.

The progress is also the content of `last` and `best`, beside the name of a checkpoint.
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
from chatbot.attempts.settings import changed_values, storable
from chatbot.config.learning import LOWER_IS_BETTER, NATS
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.version import __version__

OTHER = "restore this attempt's own from a backup, or use another --attempt"


@dataclasses.dataclass
class Progress:
    """How far a run has come; stored with every checkpoint. A field that a file lacks has its default.

    Only its own methods change it.
    """

    step: int = 0
    best_step: int = 0
    best_nats: float | None = None  # per character
    without_best: int = 0  # validations since the best
    validation: str | None = None  # fingerprint of the validation pairs of the best values
    best_by: str = NATS  # the measure that chose the best
    best_value: float | None = None  # of that measure
    skipped_updates: int = 0  # since the loss or a gradient was not finite
    skipped_in_a_row: int = 0  # those up to this step
    rate_halvings: int = 0  # the run went back so often, each time with half the learning rate
    halved_rate: float | None = None  # the --learning-rate that was halved
    first_loss: float | None = None  # nats per token at the first logged step
    high_losses: int = 0  # logged losses in a row that were far above the first one
    most_positions: int | None = None  # of a piece of a share, since memory ran out; see `MemoryLimits`
    logits: int | None = None  # in memory at a time, by what other processes left; see `LossSize`
    device_memory: int | None = None  # bytes, of the smallest device, for which both hold
    unvalidated: dict | None = None  # the metrics of this step, whose validation is to come

    @property
    def recorded_step(self) -> int:
        """The last step whose metrics are written."""
        return self.step - (self.unvalidated is not None)

    def take(self, other: "Progress") -> None:
        """Become equal to another progress."""
        vars(self).update(vars(other))

    def trained(self, step: int) -> None:
        """Take another step as the last one."""
        self.step = step

    def updated(self, finite: bool, overflow: bool) -> None:
        """Count an update if it was skipped: it was not finite. One that overflowed in float16 is not one in a row."""
        if finite:
            self.skipped_in_a_row = 0
        else:
            self.skipped_updates += 1
            self.skipped_in_a_row += not overflow

    def logged(self, loss: float, high: int) -> None:
        """Take the loss of a logged step. high: how often it counts as one far above the first; 0: it is not."""
        if self.first_loss is None:
            self.first_loss = loss
        self.high_losses = self.high_losses + high if high else 0

    def awaits_validation(self, record: dict[str, Any] | None) -> None:
        """Take the metrics of this step, whose validation is to come; None: none is."""
        self.unvalidated = record

    def on_devices(self, memory: int | None) -> None:
        """Take the memory of the smallest device. Others may have memory for whole shares."""
        if self.device_memory != memory:
            self.limited(None, None)
        self.device_memory = memory

    def limited(self, most_positions: int | None, logits: int | None) -> None:
        """Take what the devices have memory for."""
        self.most_positions = most_positions
        self.logits = logits

    def back_to(self, saved: "Progress", learning_rate: float) -> None:
        """Go back to a checkpoint with half the learning rate.

        What was counted stays, and what the devices have memory for.
        """
        kept = dataclasses.replace(
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
            kept.measured_on(self.validation, self.best_by)
        self.take(kept)

    def measured_on(self, validation: str, best_by: str = NATS) -> None:
        """Set the fingerprint of the validation pairs, and the measure. A different one resets the best validation."""
        if (validation, best_by) != (self.validation, self.best_by):
            self.validation = validation
            self.best_by = best_by
            self.without_best = 0
            self.best_nats = self.best_value = None

    def trains_at(self, learning_rate: float) -> None:
        """Set the --learning-rate. Another one than that which was halved is not halved."""
        if self.halved_rate not in (None, learning_rate):
            self.rate_halvings = 0
            self.halved_rate = None

    def validated(self, values: Mapping[str, float | None]) -> bool:
        """Record a validation at this step, its measures by name; return whether it is the best so far."""
        value = values[self.best_by]
        before = self.best_value
        best = False
        if value is not None and math.isfinite(value):
            is_better = operator.lt if self.best_by in LOWER_IS_BETTER else operator.gt
            best = before is None or is_better(value, before)
        if best:
            self.best_step = self.step
            self.best_value = value
            self.best_nats = values[NATS]
        self.without_best = 0 if best else self.without_best + 1
        return best

    def take_best_of(self, other: "Progress") -> None:
        """Take the best validation of another progress; none if it was of other pairs, or by another measure."""
        same = (other.validation, other.best_by) == (self.validation, self.best_by)
        source = other if same else Progress()
        self.best_step = source.best_step
        self.best_nats = source.best_nats
        self.best_value = source.best_value


def value_text(value: float, measure: str) -> str:
    """Return a value with the name of its measure: "4.8846 nats per character", "0.2130 relevance_at_1"."""
    return f"{value:.4f} {'nats per character' if measure == NATS else measure}"


def read_progress(path: Path) -> Progress:
    """Read the progress in `last` or `best`. Raises UserError for a file that is damaged, or of another version."""
    pointer = read_pointer(path)
    return _progress_of({name: pointer[name] for name in pointer.keys() - {"checkpoint", AT_END}}, path)


def progress_in(manifest: Mapping[str, Any], path: Path) -> Progress:
    """Return the progress in the manifest of a checkpoint. Raises DamagedError."""
    own = manifest_path(path)
    try:
        progress = _progress_of(dict(manifest["progress"]), own)
    except (UserError, ValueError, KeyError, TypeError):
        raise DamagedError(path, "damaged", f"no progress in {own.name}") from None
    if progress.step != step_of(path):
        raise DamagedError(path, "damaged", f"{own.name} is of step {progress.step:,}")
    return progress


def _progress_of(values: dict[str, Any], path: Path) -> Progress:
    kinds = get_type_hints(Progress)
    unknown = sorted(values.keys() - kinds)
    if unknown:
        raise UserError(
            f"{path}: written by another version of the program (it has {unknown[0]!r:.40}); update this one, or use "
            "another --attempt"
        )
    if not all(isinstance(value, kinds[field]) for field, value in values.items()):
        raise UserError(f"{path}: damaged; restore it from a backup, or use another --attempt")
    return Progress(**values)


def versions() -> dict[str, str]:
    """Return the versions that the bits of a result may depend on."""
    return {
        "chatbot": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@dataclasses.dataclass(frozen=True)
class Provenance:
    """What the checkpoints of a run are trained with. data: the content of data.json."""

    settings: Settings
    data: dict[str, Any]

    def content(self) -> dict[str, Any]:
        """Return the part of a manifest that `check` compares."""
        return {"data": self.data, "settings": storable(self.settings), "versions": versions()}

    def check(self, manifest: dict[str, Any], path: Path) -> list[str]:
        """Compare the manifest of a checkpoint that is resumed; return the differences that are allowed, one a line.

        Raises UserError when the pairs, the vocabulary or a fixed setting differ, and DamagedError for another form.
        """
        own = manifest_path(path)
        changes = []
        data, settings, then = (manifest.get(name, {}) for name in ("data", "settings", "versions"))
        if not all(isinstance(part, dict) for part in (data, settings, then)):
            raise DamagedError(path, "damaged", f"{own.name} is of another form")
        check_vocabulary(manifest, self.data["vocabulary"], path)
        if data.get("fingerprint") != self.data["fingerprint"]:
            raise UserError(f"{own}: a checkpoint of other training pairs; {OTHER}")
        try:
            fixed, free = changed_values(settings, self.settings)
        except (UserError, TypeError) as error:
            raise DamagedError(path, "damaged", f"{own.name}: {error}") from None
        if fixed:
            raise UserError(f"{own}: a checkpoint of other settings: {'; '.join(fixed)}; {OTHER}")
        if free:
            changes.append(f"Changed since step {step_of(path):,}: {'; '.join(free)}.")
        others = [
            f"{name} {then[name]!s:.20} (now {now})"
            for name, now in versions().items()
            if then.get(name) not in (None, now)
        ]
        if others:
            written = f"The checkpoint was written with {', '.join(others)}"
            changes.append(f"{written}: results may differ in the last bits from those of one version.")
        return changes
