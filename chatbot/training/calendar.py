"""Which steps are logged, validated and saved, and which step is the last."""

import dataclasses
from typing import NamedTuple

from chatbot.config.training import Settings

# A run without --steps, --epochs and --validation takes ten epochs, and at least this many steps.
LEAST_STEPS, EPOCHS = 1000, 10
# Validation takes place once an epoch, but at least every this many steps.
MOST_STEPS_UNVALIDATED = 2000


class Due(NamedTuple):
    """The actions that are due after a step."""

    log: bool
    validate: bool
    save: bool


@dataclasses.dataclass(frozen=True)
class Calendar:
    """The intervals of a run in steps.

    validate_every: None without validation pairs. last_step: None if only validation ends the run.
    """

    log_every: int
    save_every: int
    validate_every: int | None
    last_step: int | None

    def due(self, step: int) -> Due:
        """Return the actions that are due after this many steps. A validation is always saved, and a save is logged."""
        last = step == self.last_step
        validate = self.validate_every is not None and (last or step % self.validate_every == 0)
        save = validate or last or step % self.save_every == 0
        log = save or step == 1 or step % self.log_every == 0
        return Due(log, validate, save)


def calendar_of(settings: Settings, steps_per_epoch: int, validates: bool) -> Calendar:
    """Return the calendar for the settings. validates: whether there are validation pairs."""
    validate_every = settings.run.validate_every or min(steps_per_epoch, MOST_STEPS_UNVALIDATED)
    return Calendar(
        settings.run.log_every,
        settings.run.save_every,
        validate_every if validates else None,
        last_step(settings, steps_per_epoch),
    )


def last_step(settings: Settings, steps_per_epoch: int) -> int | None:
    """Return the last step of the run; None if only validation ends it."""
    if settings.learning.steps is not None:
        return settings.learning.steps
    if settings.learning.epochs is not None:
        return settings.learning.epochs * steps_per_epoch
    if settings.encoding.validation is not None:
        return None
    return max(LEAST_STEPS, EPOCHS * steps_per_epoch)
