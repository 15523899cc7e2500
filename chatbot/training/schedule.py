"""The learning rate of each step, which steps are logged, validated and saved, and which step is the last."""

import dataclasses
import math
from typing import NamedTuple

from chatbot.config.learning import CONSTANT, COSINE, INVERSE_SQUARE_ROOT, ONE_CYCLE, LearningSettings
from chatbot.config.training import Settings
from chatbot.display import counted
from chatbot.errors import UserError

# The batch size that --learning-rate refers to if --scale-learning-rate is given.
BASE_BATCH = 64
# The warm-up of a scaled rate takes one epoch, but at most this many steps.
MOST_WARM_UP = 1000
# one-cycle: the first rate as a share of the highest, and the share of the run in which it rises.
FIRST_SHARE = 1 / 25
RISING_SHARE = 0.3
# Without --steps, --epochs and validation, a run takes ten epochs, and at least this many steps. Validation does not
# end a run earlier either: on small corpora, the first validations differ by chance.
LEAST_STEPS = 1000
EPOCHS = 10
# Validation takes place once an epoch, but not more and not less often than this many steps, ...
FEWEST_STEPS_BETWEEN = 100
MOST_STEPS_BETWEEN = 2000
# ... and at most this share of the time is spent on it. Scoring a pair takes about a third of training on it.
VALIDATION_SHARE = 0.1
SCORING_COST = 1 / 3


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of the step.

    It rises from zero in `warm_up` steps to the highest one, in a line, and then stays (constant), falls with the
    inverse square root of the step (Vaswani et al., 2017), or along half a cosine to zero at `length` (cosine).
    one-cycle rises from a 25th and falls to zero, both along half a cosine (Smith and Topin, 2018).

    A batch k times as large averages the noise of k steps, so the highest rate may grow with k (Goyal et al., 2017) or,
    with adaptive optimizers, with its square root (Hoffer et al., 2017), after a warm-up.
    """

    highest: float
    warm_up: int  # steps
    kind: str = CONSTANT
    length: int = 0  # steps of the run, for cosine and one-cycle

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if self.kind == ONE_CYCLE:
            peak = self.warm_up - 1
            if step < peak:
                return _half_cosine(self.highest * FIRST_SHARE, self.highest, step / peak)
            return _half_cosine(self.highest, 0.0, (step - peak) / (self.length - peak))
        if step + 1 < self.warm_up:
            return self.highest * ((step + 1) / self.warm_up)
        if self.kind == COSINE:
            return _half_cosine(self.highest, 0.0, (step - self.warm_up) / (self.length - self.warm_up))
        if self.kind == INVERSE_SQUARE_ROOT:
            return self.highest * math.sqrt(self.warm_up / (step + 1))
        return self.highest


def _half_cosine(first: float, last: float, part: float) -> float:
    """Return the value at this part, 0 to 1, of the way from the first value to the last."""
    return last + (first - last) * (1 + math.cos(math.pi * min(max(part, 0.0), 1.0))) / 2


def schedule_of(settings: LearningSettings, pairs: float, steps_per_epoch: int) -> Schedule:
    """Return the schedule. pairs: in a global batch on average. Raises UserError for a warm-up longer than the run."""
    factors = {"linear": pairs / BASE_BATCH, "sqrt": (pairs / BASE_BATCH) ** 0.5, "none": 1.0}
    length = settings.steps or (settings.epochs or 0) * steps_per_epoch
    warm_up = settings.warm_up
    if settings.schedule == ONE_CYCLE:
        warm_up = warm_up or min(math.ceil(RISING_SHARE * length), length - 1)
    elif warm_up is None:
        warm_up = min(steps_per_epoch, MOST_WARM_UP) if settings.scale_learning_rate != "none" else 0
    if settings.schedule in (COSINE, ONE_CYCLE) and warm_up >= length:
        raise UserError(f"--warm-up {warm_up}: the run has {counted(length, 'step')}; choose less, or a longer run")
    highest = settings.learning_rate * factors[settings.scale_learning_rate]
    return Schedule(highest, warm_up, settings.schedule, length)


class Due(NamedTuple):
    """The actions that are due after a step."""

    log: bool
    validate: bool
    save: bool


@dataclasses.dataclass(frozen=True)
class Calendar:
    """The intervals in steps; no validate_every without validation, no last_step if only validation ends the run."""

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
    """Return the calendar. validation_pairs: 0 without validation. validation_decides: whether it may end the run."""
    run = settings.run
    last = settings.learning.steps
    if last is None and settings.learning.epochs is not None:
        last = settings.learning.epochs * steps_per_epoch
    elif last is None and not validation_decides:
        last = max(LEAST_STEPS, EPOCHS * steps_per_epoch)
    affordable = math.ceil(validation_pairs * SCORING_COST / VALIDATION_SHARE / pairs_per_step)
    every = run.validate_every or max(FEWEST_STEPS_BETWEEN, affordable, min(steps_per_epoch, MOST_STEPS_BETWEEN))
    return Calendar(run.log_every, run.save_every, every if validation_pairs else None, last)
