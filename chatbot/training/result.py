"""The result of a training run. This module does not import TensorFlow, unlike the trainer."""

import dataclasses
from pathlib import Path

# Reasons to stop.
INTERRUPTED, TIME_UP = "interrupted", "--time-limit is over; the same command goes on from here"


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of a training run."""

    directory: Path  # of the attempt, absolute
    step: int  # the steps of earlier runs included
    stopped: str  # the reason, in words
    best_step: int  # 0 without validation
    best_nats_per_character: float | None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C, SIGTERM or SIGHUP ended the run, which can be resumed."""
        return self.stopped == INTERRUPTED
