"""Which steps are logged, validated and saved, and which step is the last."""

import dataclasses
import math
from typing import NamedTuple

from chatbot.config.training import Settings

# Without --steps, --epochs and validation, a run takes ten epochs, and at least this many steps. Validation does not
# end a run earlier either: on small corpora, the first validations differ by chance.
LEAST_STEPS, EPOCHS = 1000, 10
# Validation takes place once an epoch, but not more and not less often than this many steps, ...
FEWEST_STEPS_BETWEEN, MOST_STEPS_BETWEEN = 100, 2000
# ... and at most this share of the time is spent on it. Scoring a pair takes about a third of training on it.
VALIDATION_SHARE, SCORING_COST = 0.1, 1 / 3


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


def calendar_of(
    settings: Settings, steps_per_epoch: int, pairs_per_step: float, validation_pairs: int, validation_decides: bool
) -> Calendar:
    """Return the calendar for the settings.

    validation_pairs: 0 without validation. validation_decides: whether validation may end the run.
    """
    validate_every = settings.run.validate_every or steps_between(steps_per_epoch, pairs_per_step, validation_pairs)
    return Calendar(
        settings.run.log_every,
        settings.run.save_every,
        validate_every if validation_pairs else None,
        last_step(settings, steps_per_epoch, validation_decides),
    )


def steps_between(steps_per_epoch: int, pairs_per_step: float, validation_pairs: int) -> int:
    """Return the number of steps between two validations."""
    affordable = validation_pairs * SCORING_COST / VALIDATION_SHARE / pairs_per_step
    return max(FEWEST_STEPS_BETWEEN, math.ceil(affordable), min(steps_per_epoch, MOST_STEPS_BETWEEN))


def last_step(settings: Settings, steps_per_epoch: int, validation_decides: bool) -> int | None:
    """Return the last step of the run; None if only validation ends it."""
    if settings.learning.steps is not None:
        return settings.learning.steps
    if settings.learning.epochs is not None:
        return settings.learning.epochs * steps_per_epoch
    if validation_decides:
        return None
    return max(LEAST_STEPS, EPOCHS * steps_per_epoch)
