"""The result of a training run."""

import dataclasses
from pathlib import Path

# Values of `TrainingResult.stopped` that callers check for.
INTERRUPTED = "interrupted"
TIME_UP = "--time-limit has expired; the same command resumes training"


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of a training run."""

    directory: Path  # absolute path of the attempt
    step: int  # number of steps, including earlier runs of the attempt; 0 if unknown
    stopped: str  # the reason why the run stopped, as a message
    best_step: int  # step of the best checkpoint; 0 without validation
    best_nats_per_character: float | None
    exit_code: int = 0  # exit code of the train command

    @property
    def interrupted(self) -> bool:
        """Whether a signal, such as Ctrl-C, stopped the run. The same command resumes the run."""
        return self.stopped == INTERRUPTED
