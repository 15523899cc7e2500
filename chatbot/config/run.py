"""Settings of a run: its name, and the intervals of logging, saving and validation."""

import dataclasses
from pathlib import Path

from chatbot.config.attempts import attempt_directory
from chatbot.config.corpus import AUTO, NONE
from chatbot.config.presets import PRESETS
from chatbot.flags import check_fields, setting

RUN = "run"


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """The name and the intervals of a run. Raises UserError for a value out of range."""

    attempt: str = setting(
        "default",
        RUN,
        "name of this training run; an existing one is resumed with its own settings, which flags override",
        metavar="NAME",
    )
    config: str | None = setting(
        None,
        RUN,
        "read settings from a JSON file, which flags override; an attempt's config.json means that attempt, unless "
        "--attempt names another",
        metavar="FILE",
        stored=False,
    )
    preset: str = setting(
        AUTO,
        RUN,
        "choose some defaults of a new attempt by the size of its corpus; flags override them. auto: by the number of "
        "training pairs, with validation only; none: the defaults listed here. See docs/training.md",
        choices=(AUTO, *PRESETS, NONE),
        fixed=True,
    )
    init_from: str | None = setting(
        None,
        RUN,
        "fine-tuning: begin with the weights of the best checkpoint of another attempt, by its name or the path of its "
        "folder; its tokens, the settings of its model and tokenizer, and its cleaning rules are kept",
        metavar="ATTEMPT",
        fixed=True,
    )
    log_every: int = setting(10, RUN, "steps between two lines of metrics.jsonl", kind=int, least=1)
    save_every: int = setting(500, RUN, "steps between two checkpoints", kind=int, least=1)
    validate_every: int | None = setting(
        None,
        RUN,
        "steps between two validations; default: one epoch, at least 100 and at most 2,000 steps, more if there are "
        "many validation pairs",
        kind=int,
        least=1,
    )
    # The settings that the preset may set: neither a flag nor a file has set them.
    not_given: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_fields(self)
        attempt_directory(self.attempt)

    @property
    def directory(self) -> Path:
        """The folder with the attempt's checkpoints, vocabulary and metrics."""
        return attempt_directory(self.attempt).absolute()
