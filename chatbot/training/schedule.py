"""The learning rate of each step."""

import dataclasses

from chatbot.config.learning import LearningSettings

# The batch that --learning-rate is meant for, where --scale-learning-rate is told to fit it to another.
BASE_BATCH = 64
# Warm-up of a scaled rate takes an epoch, but no more steps than this.
MOST_WARM_UP = 1000


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Linear warm-up from zero to the highest rate, which then stays.

    A batch k times as large averages the noise of k steps into one, so the rate may grow with k
    (Goyal et al., 2017) or, for adaptive optimizers, with its square root (Hoffer et al., 2017); both
    need a warm-up, since the first steps are where a large rate does harm.
    """

    highest: float
    warm_up: int  # steps

    def rate(self, step: int) -> float:
        """step: from 0."""
        return self.highest * min(1.0, (step + 1) / self.warm_up) if self.warm_up else self.highest


def schedule_of(settings: LearningSettings, pairs: float, steps_per_epoch: int) -> Schedule:
    """The schedule for a global batch of so many pairs, on average."""
    factor = {"linear": pairs / BASE_BATCH, "sqrt": (pairs / BASE_BATCH) ** 0.5, "none": 1.0}[
        settings.scale_learning_rate
    ]
    scaled = min(steps_per_epoch, MOST_WARM_UP) if settings.scale_learning_rate != "none" else 0
    return Schedule(
        settings.learning_rate * factor,
        scaled if settings.warm_up is None else settings.warm_up,
    )


def describe(settings: LearningSettings, schedule: Schedule, pairs: float) -> str:
    """One line on what was made of --learning-rate; "" where it is simply used."""
    line = ""
    if settings.scale_learning_rate != "none":
        line = (
            f"Learning rate {schedule.highest:.4g}: {settings.learning_rate:g} scaled by "
            f"{settings.scale_learning_rate} of {pairs:,.0f}/{BASE_BATCH} pairs in a batch"
        )
    if schedule.warm_up:
        line = (line or f"Learning rate {schedule.highest:.4g}") + f", reached after {schedule.warm_up:,} steps"
    return line and line + "."
