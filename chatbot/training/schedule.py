"""The learning rate schedule, and the schedule of logging, validation and checkpoints."""

import dataclasses
import math
from typing import NamedTuple

from chatbot.config.learning import CONSTANT, COSINE, INVERSE_SQUARE_ROOT, ONE_CYCLE, LearningSettings
from chatbot.config.training import Settings
from chatbot.display import pluralize
from chatbot.errors import UserError

# With --scale-learning-rate, the default warm-up is one epoch, but at most this many steps, and at most RISING_FRACTION
# of the run.
MAX_WARM_UP = 100
# With the one-cycle schedule, the learning rate starts at this fraction of the highest rate, and rises during this
# fraction of the run.
FIRST_FRACTION = 1 / 25
RISING_FRACTION = 0.3
# Validation cannot end a run before this step, because early validations of small corpora are noisy. Without --steps,
# --epochs and validation, a run takes EPOCHS epochs, but at least MIN_STEPS steps.
MIN_STEPS = 1000
EPOCHS = 10
# Without --log-every, the interval between logs is FIRST_LOG_INTERVAL steps, which is doubled or halved until it takes
# about this many seconds.
LOG_SECONDS = 1.0
FIRST_LOG_INTERVAL = 8
# By default, the model is validated once per epoch. These are the limits of the interval in steps.
MIN_VALIDATION_INTERVAL = 100
MAX_VALIDATION_INTERVAL = 2000
# Validation is less frequent if it would otherwise take more than this fraction of the training time.
VALIDATION_TIME_FRACTION = 0.1
# The approximate time of validation on a pair, relative to training on a pair.
SCORING_COST = 1 / 3


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of the step.

    The rate rises linearly from zero to `highest` during `warm_up` steps. Then it either stays constant, decays with
    the inverse square root of the step (Vaswani et al., 2017), or falls to zero along half a cosine. With the one-cycle
    schedule (Smith and Topin, 2018), the rate rises from 1/25 of `highest` along half a cosine, then falls to zero
    along half a cosine.
    """

    highest: float
    warm_up: int  # number of warm-up steps
    kind: str = CONSTANT
    length: int = 0  # number of steps of the run; only used by cosine and one-cycle

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if self.kind == ONE_CYCLE:
            peak = self.warm_up - 1
            if step < peak:
                return _half_cosine(self.highest * FIRST_FRACTION, self.highest, step / peak)
            return _half_cosine(self.highest, 0.0, (step - peak) / (self.length - peak))
        if step + 1 < self.warm_up:
            return self.highest * ((step + 1) / self.warm_up)
        if self.kind == COSINE:
            return _half_cosine(self.highest, 0.0, (step - self.warm_up) / (self.length - self.warm_up))
        if self.kind == INVERSE_SQUARE_ROOT:
            return self.highest * math.sqrt(self.warm_up / (step + 1))
        return self.highest


def _half_cosine(first: float, last: float, part: float) -> float:
    """Interpolate between `first` and `last` along half a cosine, at the fraction `part` of the interval."""
    return last + (first - last) * (1 + math.cos(math.pi * min(max(part, 0.0), 1.0))) / 2


def make_schedule(settings: LearningSettings, pairs: float, steps_per_epoch: int, base: int) -> Schedule:
    """Create the learning rate schedule of a run.

    With --scale-learning-rate, the rate grows with the batch size, because larger batches have less gradient noise. It
    is proportional to the batch size (Goyal et al., 2017) or to its square root (Hoffer et al., 2017).

    Args:
        settings: The learning settings.
        pairs: The average number of pairs in a global batch.
        steps_per_epoch: The number of steps in an epoch.
        base: The batch size to which --learning-rate refers.

    Raises:
        UserError: If the warm-up takes the whole run or longer.
    """
    factors = {"linear": pairs / base, "sqrt": (pairs / base) ** 0.5, "none": 1.0}
    length = settings.steps or (settings.epochs or 0) * steps_per_epoch
    warm_up = settings.warm_up
    if settings.schedule == ONE_CYCLE:
        warm_up = warm_up or min(math.ceil(RISING_FRACTION * length), length - 1)
    elif warm_up is None:
        limit = int(RISING_FRACTION * length) if length else MAX_WARM_UP
        warm_up = min(steps_per_epoch, MAX_WARM_UP, limit) if settings.scale_learning_rate != "none" else 0
    if settings.schedule in (COSINE, ONE_CYCLE) and warm_up >= length:
        raise UserError(
            f"--warm-up {warm_up}: the run has only {pluralize(length, 'step')}; reduce it, or train longer"
        )
    highest = settings.learning_rate * factors[settings.scale_learning_rate]
    return Schedule(highest, warm_up, settings.schedule, length)


class Due(NamedTuple):
    """The actions that are due after a step."""

    log: bool
    validate: bool
    save: bool


@dataclasses.dataclass
class Calendar:
    """Determines after which steps a run logs, validates and saves. All intervals are in steps."""

    log_every: int  # changes during a run without --log-every
    save_every: int | None  # None if only the time determines when to save
    validate_every: int | None  # None without validation
    last_step: int | None  # None if only validation ends the run

    def due(self, step: int) -> Due:
        """Return the actions due after a step, counted from 1. Validated steps are saved, and saved steps logged."""
        last = step == self.last_step
        validate = self.validate_every is not None and (last or step % self.validate_every == 0)
        save = validate or last or (self.save_every is not None and step % self.save_every == 0)
        log = save or step == 1 or step % self.log_every == 0
        return Due(log, validate, save)


def next_log_interval(interval: int, seconds_per_step: float) -> int:
    """Return the interval between logs, in steps, that follows `interval` if a log is due every LOG_SECONDS."""
    seconds = interval * seconds_per_step
    return (
        2 * interval if 2 * seconds <= LOG_SECONDS else max(1, interval // 2) if seconds > 2 * LOG_SECONDS else interval
    )


def make_calendar(
    settings: Settings, steps_per_epoch: int, pairs_per_step: float, validation_pairs: int, validation_decides: bool
) -> Calendar:
    """Create the calendar of a run.

    Args:
        settings: The settings of the run.
        steps_per_epoch: The number of steps in an epoch.
        pairs_per_step: The average number of pairs in a global batch.
        validation_pairs: The number of validation pairs; 0 without validation.
        validation_decides: Whether validation can end the run.
    """
    run = settings.run
    last = settings.learning.steps
    if last is None and settings.learning.epochs is not None:
        last = settings.learning.epochs * steps_per_epoch
    elif last is None and not validation_decides:
        last = max(MIN_STEPS, EPOCHS * steps_per_epoch)
    min_interval = math.ceil(validation_pairs * SCORING_COST / VALIDATION_TIME_FRACTION / pairs_per_step)
    every = run.validate_every or max(
        MIN_VALIDATION_INTERVAL, min_interval, min(steps_per_epoch, MAX_VALIDATION_INTERVAL)
    )
    return Calendar(run.log_every or FIRST_LOG_INTERVAL, run.save_every, every if validation_pairs else None, last)
