"""How far a run has come: the content of `last` and `best`, beside the name of a checkpoint."""

import dataclasses
import math
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from chatbot.config.learning import LOWER_IS_BETTER, NATS
from chatbot.errors import UserError
from chatbot.model.checkpoint import AT_END, read_pointer


@dataclasses.dataclass
class Progress:
    """How far a run has come; stored with every checkpoint. A field that a file lacks has its default."""

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

    def measured_on(self, validation: str, best_by: str = NATS) -> None:
        """Set the fingerprint of the validation pairs, and the measure. A different one resets the best validation."""
        if (validation, best_by) != (self.validation, self.best_by):
            self.validation, self.best_by, self.without_best = validation, best_by, 0
            self.best_nats = self.best_value = None

    def trains_at(self, learning_rate: float) -> None:
        """Set the --learning-rate. Another one than that which was halved is not halved."""
        if self.halved_rate not in (None, learning_rate):
            self.rate_halvings, self.halved_rate = 0, None

    def validated(self, values: Mapping[str, float | None]) -> bool:
        """Record a validation at this step, its measures by name; return whether it is the best so far."""
        value, before, best = values[self.best_by], self.best_value, False
        if value is not None and math.isfinite(value):
            is_better = operator.lt if self.best_by in LOWER_IS_BETTER else operator.gt
            best = before is None or is_better(value, before)
        if best:
            self.best_step, self.best_value, self.best_nats = self.step, value, values[NATS]
        self.without_best = 0 if best else self.without_best + 1
        return best

    def take_best_of(self, other: "Progress") -> None:
        """Take the best validation of another progress; none if it was of other pairs, or by another measure."""
        same = (other.validation, other.best_by) == (self.validation, self.best_by)
        source = other if same else Progress()
        self.best_step, self.best_nats, self.best_value = source.best_step, source.best_nats, source.best_value


def value_text(value: float, measure: str) -> str:
    """Return a value with the name of its measure: "4.8846 nats per character", "0.2130 relevance_at_1"."""
    return f"{value:.4f} {'nats per character' if measure == NATS else measure}"


def read_progress(path: Path) -> tuple[str, Progress]:
    """Read the name of a checkpoint and its progress from `last` or `best`.

    Raises UserError for a file that is damaged, or of another version.
    """
    pointer = read_pointer(path)
    pointer.pop(AT_END, None)
    return pointer.pop("checkpoint"), progress_of(pointer, path)


def progress_of(values: dict[str, Any], path: Path) -> Progress:
    """Return the progress with these values, which are from a file. Raises UserError as `read_progress` does."""
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
