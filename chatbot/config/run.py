"""Settings of a training run: its name, its preset, and how often it logs, saves and validates."""

import dataclasses
import importlib.util
import re
from pathlib import Path
from typing import Any

from chatbot.config.attempts import EMBEDDINGS, attempt_directory
from chatbot.config.corpus import AUTO, NONE
from chatbot.config.learning import LearningSettings
from chatbot.config.model import RECURRENT_SETTINGS, TRANSFORMER
from chatbot.errors import UserError
from chatbot.flags import Flags, setting

# Values of --report-to.
TENSORBOARD = "tensorboard"
WANDB = "wandb"
# Default settings of new training runs, by the size of the corpus (see docs/experiments.md). In each preset, a setting
# must come after the settings that it depends on.
LARGER: dict[str, Any] = {"rnn_size": 512, "batch_size": 128, "keep_prob": 0.7}
PRESETS: dict[str, dict[str, Any]] = {
    "small": {"copy": True, "ngrams": 3, "average": 0.999},
    "medium": {**LARGER, "copy": True, "ngrams": 4, "ngram_weight": 0.3, "average": 0.999},
    "large": {**LARGER, "copy": True, "average": 0.999},
}
# For --architecture transformer, these settings replace the settings of recurrent layers in all presets.
TRANSFORMER_PRESET = {"num_layers": 2, "learning_rate": 0.001, "warm_up": 300, "keep_prob": 0.7}
# The default of --save-minutes without --save-every.
SAVE_MINUTES = 5.0
# A preset is the default for corpora of fewer pairs than this number. Larger corpora get the last preset.
PRESET_MAX_PAIRS = {"small": 50_000, "medium": 300_000}
PRESET_SIZES = f"{', '.join(f'{name} below {pairs:,}' for name, pairs in PRESET_MAX_PAIRS.items())}, otherwise large"


@dataclasses.dataclass(frozen=True)
class RunSettings(Flags):
    """Settings of a training run: its name, its preset, and how often it logs, saves and validates."""

    attempt: str = setting(
        "default",
        "name of the attempt; an existing attempt is resumed with its stored settings",
        group="run",
        metavar="NAME",
    )
    config: str | None = setting(
        None,
        "file of settings: YAML, as written by init-config, or the config.json of an attempt, which is then resumed",
        metavar="FILE",
        stored=False,
    )
    preset: str = setting(
        AUTO,
        f"set of defaults; with validation, auto chooses a preset by the number of training pairs: {PRESET_SIZES}",
        choices=(AUTO, *PRESETS, NONE),
        fixed=True,
    )
    init_from: str | None = setting(
        None,
        "model to fine-tune: an attempt or a pretrained BART, mBART, T5 or mT5, by name or folder",
        metavar="ATTEMPT",
        fixed=True,
    )
    retrieve_pairs: int = setting(
        2_000_000,
        "maximum number of training pairs that are stored in the attempt for chat --retrieve; 0 stores no pairs",
        minimum=0,
    )
    embeddings: str = setting(
        AUTO,
        f"{EMBEDDINGS}; auto: keep existing vectors, or use e5 if it is installed and takes less than 10 minutes",
        metavar="auto|e5|FOLDER|none",
    )
    log_every: int | None = setting(
        None, "number of steps between records in metrics.jsonl", unset="about one second", minimum=1
    )
    save_every: int | None = setting(None, "number of steps between checkpoints", unset="see --save-minutes", minimum=1)
    save_minutes: float | None = setting(
        None,
        "save a checkpoint at least every R minutes",
        unset=f"{SAVE_MINUTES:g}, or only by --save-every if it is given",
        above=0,
    )
    keep: int = setting(1, "number of most recent checkpoints to keep, besides the best checkpoint", minimum=1)
    validate_every: int | None = setting(
        None,
        "number of steps between validations",
        unset="one epoch, but at least 100 and usually at most 2,000 steps",
        minimum=1,
    )
    report_to: str = setting(
        TENSORBOARD,
        "destination of metrics besides metrics.jsonl; wandb uploads the TensorBoard files",
        choices=(TENSORBOARD, WANDB, NONE),
    )
    time_limit: str | None = setting(
        None,
        "save a checkpoint and exit with code 0 after this time, in hours:minutes[:seconds]",
        metavar="H:MM",
        stored=False,
    )
    probe: str | None = setting(None, "text file of at most 20 questions to answer at each validation", metavar="FILE")
    quiet: bool = setting(False, "print only errors, warnings and the final summary", stored=False)
    dry_run: bool = setting(
        False,
        "run a few steps, print the size of the model, the memory, and the time on 1, 2, 4, ... devices, and exit",
        stored=False,
    )
    # Time at which training must stop because of --time-limit, in seconds since the Unix epoch.
    deadline: float | None = None
    profile: str | None = setting(
        None, "record a profiler trace of steps A to B for TensorBoard's Profile page", metavar="A:B", stored=False
    )
    # Names of the settings that neither a flag nor a file sets. Only these can be chosen (see `chosen_settings`).
    not_given: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        attempt_directory(self.attempt)
        if self.time_limit is not None:
            parse_time_limit(self.time_limit)
        if self.embeddings not in (AUTO, NONE) and not self.retrieve_pairs:
            raise UserError("--embeddings: the attempt stores no pairs to search; leave out --retrieve-pairs 0")
        steps = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12})", self.profile or "1:1")
        if not steps or not 1 <= int(steps[1]) <= int(steps[2]):
            raise UserError(f"--profile {self.profile}: expected two steps A:B with 1 <= A <= B, such as 100:110")

    @property
    def profiled_steps(self) -> range:
        """Steps to profile, counted from 1."""
        if self.profile is None:
            return range(0)
        first, last = map(int, self.profile.split(":"))
        return range(first, last + 1)

    @property
    def minutes_between_saves(self) -> float | None:
        """Maximum number of minutes between two checkpoints; None if only steps determine when to save."""
        return self.save_minutes or (SAVE_MINUTES if self.save_every is None else None)

    @property
    def directory(self) -> Path:
        """Folder of the training run, which contains its checkpoints, vocabulary and metrics."""
        return attempt_directory(self.attempt).absolute()


def check_client(report_to: str) -> None:
    """Raise UserError if the library for --report-to is not installed. The library is not imported, which is slow."""
    if report_to != WANDB:
        return
    spec = importlib.util.find_spec("wandb")
    if spec is None or spec.origin is None:  # without an origin, the result is only an output folder, such as wandb/
        raise UserError("--report-to wandb: wandb is not installed; run `pip install wandb`")


def parse_time_limit(time_limit: str) -> int:
    """Convert the value of --time-limit to seconds. Raises UserError if the value is malformed."""
    match = re.fullmatch(r"(\d{1,5}):([0-5]\d)(?::([0-5]\d))?", time_limit, re.ASCII)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not total:
        raise UserError(f"--time-limit {time_limit}: expected hours:minutes, such as 35:30 or 0:45, above zero")
    return total


def preset_for(pairs: int) -> str:
    """Return the name of the preset for this number of training pairs."""
    return next((name for name, limit in PRESET_MAX_PAIRS.items() if pairs < limit), [*PRESETS][-1])


def values_of_preset(name: str, architecture: str) -> dict[str, Any]:
    """Return the settings in a preset by name, for an architecture."""
    if architecture != TRANSFORMER:
        return PRESETS[name]
    values = {key: value for key, value in PRESETS[name].items() if key not in RECURRENT_SETTINGS}
    return {**values, **TRANSFORMER_PRESET}


def base_batch(preset: str, architecture: str) -> int:
    """Return the batch size that the learning rate refers to: that of the preset, or the default without a preset."""
    values = values_of_preset(preset, architecture) if preset in PRESETS else {}
    return int(values.get("batch_size", LearningSettings.batch_size))


def chosen_settings() -> frozenset[str]:
    """Return the names of all settings that a preset or the number of GPUs can determine."""
    names = (name for values in (*PRESETS.values(), TRANSFORMER_PRESET) for name in values)
    return frozenset({*names, "batch_size", "scale_learning_rate"})
