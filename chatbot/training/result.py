"""The result of a training run."""

import dataclasses
from pathlib import Path

# Why a run is over, if not for a reason in other words.
INTERRUPTED = "interrupted"
TIME_UP = "--time-limit is over; the same command goes on from here"


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of a training run."""

    directory: Path  # of the attempt, absolute
    step: int  # the steps of earlier runs included; 0 if unknown
    stopped: str  # the reason, in words
    best_step: int  # 0 without validation
    best_nats_per_character: float | None
    exit_code: int = 0  # of the command

    @property
    def interrupted(self) -> bool:
        """Whether a signal, such as that of Ctrl-C, ended the run, which can be resumed."""
        return self.stopped == INTERRUPTED
