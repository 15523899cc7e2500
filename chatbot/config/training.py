"""What train.py is told: the source of its flags, of their --help and of config.json."""

import dataclasses
from pathlib import Path

from chatbot.config.attempts import attempt_directory
from chatbot.config.parallel import ParallelSettings
from chatbot.flags import setting

RUN = "run"


@dataclasses.dataclass(frozen=True)
class Settings(ParallelSettings):
    """The settings of one attempt, validated when made. Raises UserError for a value out of range."""

    attempt: str = setting("default", RUN, "name of this training run", metavar="NAME")
    config: str | None = setting(
        None,
        RUN,
        "settings from a JSON file such as an attempt's config.json; flags override it",
        metavar="FILE",
        stored=False,
    )
    log_every: int = setting(10, RUN, "steps between two lines of metrics", kind=int, least=1)
    save_every: int = setting(500, RUN, "steps between two checkpoints", kind=int, least=1)
    validate_every: int | None = setting(
        None, RUN, "steps between two validations; default: one pass over the data", kind=int, least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        attempt_directory(self.attempt)

    @property
    def directory(self) -> Path:
        """Where the attempt's checkpoints, vocabulary and metrics are."""
        return attempt_directory(self.attempt)
