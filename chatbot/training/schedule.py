"""The learning rate of each step."""

import dataclasses

from chatbot.config.learning import LearningSettings

# The batch size that --learning-rate refers to if --scale-learning-rate is given.
BASE_BATCH = 64
# The warm-up of a scaled rate takes one epoch, but at most this many steps.
MOST_WARM_UP = 1000


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Linear warm-up from zero to the highest rate, which is constant from then on.

    A batch k times as large averages the noise of k steps, so the rate may grow with k (Goyal et al., 2017) or, with
    adaptive optimizers, with its square root (Hoffer et al., 2017). Both need a warm-up: a large rate harms most in
    the first steps.
    """

    highest: float
    warm_up: int  # steps

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return self.highest * min(1.0, (step + 1) / self.warm_up) if self.warm_up else self.highest


def schedule_of(settings: LearningSettings, pairs: float, steps_per_epoch: int) -> Schedule:
    """Return the schedule. pairs: the average number of pairs in a global batch."""
    factor = {"linear": pairs / BASE_BATCH, "sqrt": (pairs / BASE_BATCH) ** 0.5, "none": 1.0}[
        settings.scale_learning_rate
    ]
    scaled = min(steps_per_epoch, MOST_WARM_UP) if settings.scale_learning_rate != "none" else 0
    return Schedule(
        settings.learning_rate * factor,
        scaled if settings.warm_up is None else settings.warm_up,
    )


def describe(settings: LearningSettings, schedule: Schedule, pairs: float) -> str:
    """Return one line about the scaling and the warm-up of --learning-rate; "" without them."""
    line = ""
    if settings.scale_learning_rate != "none":
        line = (
            f"Learning rate {schedule.highest:.4g}: {settings.learning_rate:g} scaled by "
            f"{settings.scale_learning_rate} of {pairs:,.0f}/{BASE_BATCH} pairs in a batch"
        )
    if schedule.warm_up:
        line = (line or f"Learning rate {schedule.highest:.4g}") + f", reached after {schedule.warm_up:,} steps"
    return line and line + "."
