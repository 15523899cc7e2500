"""Settings of a run: its name, and the intervals of logging, saving and validation."""

import dataclasses
import importlib.util
import re
from pathlib import Path
from typing import Any

from chatbot.config.attempts import EMBEDDINGS, attempt_directory
from chatbot.config.corpus import AUTO, NONE
from chatbot.config.model import OF_RECURRENT, TRANSFORMER
from chatbot.errors import UserError
from chatbot.flags import Flags, flag_of, setting

RUN = "run"
# What --report-to names.
TENSORBOARD = "tensorboard"
WANDB = "wandb"
# The defaults of a new attempt that follow its corpus; an attempt keeps the values that it began with. They are of
# settings of the model and of the optimisation, which change no training pair. A setting that needs another one comes
# after it. docs/experiments.md compares them.
LARGER: dict[str, Any] = {"rnn_size": 512, "batch_size": 128, "keep_prob": 0.7}
PRESETS: dict[str, dict[str, Any]] = {
    "small": {"copy": True, "ngrams": 3, "average": 0.999},
    "medium": {**LARGER, "copy": True, "ngrams": 4, "ngram_weight": 0.3, "average": 0.999},
    "large": {**LARGER, "copy": True, "average": 0.999},
}
# With --architecture transformer, a preset sets these as well, and none of the settings that it does not use.
OF_PRESETS_WITH_TRANSFORMER = {"num_layers": 2, "learning_rate": 0.001, "warm_up": 300, "keep_prob": 0.7}
# The preset of a corpus is the first one with more training pairs than the corpus, or the last preset.
FEWER_PAIRS_THAN = {"small": 50_000, "medium": 300_000}
PRESET_TEXT = (
    "; ".join(
        f"{name}{f', below {FEWER_PAIRS_THAN[name]:,}' if name in FEWER_PAIRS_THAN else ''}: "
        + " ".join(flag_of(key) if value is True else f"{flag_of(key)} {value}" for key, value in values.items())
        for name, values in PRESETS.items()
    )
    + "; with a Transformer also "
    + " ".join(f"{flag_of(key)} {value}" for key, value in OF_PRESETS_WITH_TRANSFORMER.items())
)


@dataclasses.dataclass(frozen=True)
class RunSettings(Flags):
    """The name and the intervals of a run. Raises UserError for a value out of range."""

    attempt: str = setting(
        "default", "name of this run; an existing one is resumed with its own settings", group=RUN, metavar="NAME"
    )
    config: str | None = setting(
        None,
        "read settings from a file: YAML, as `python -m chatbot init-config FILE.yaml` writes it, or an attempt's "
        "config.json, which means that attempt",
        metavar="FILE",
        stored=False,
    )
    preset: str = setting(
        AUTO,
        f"defaults of a new attempt by its number of training pairs; auto: with validation only; {PRESET_TEXT}",
        choices=(AUTO, *PRESETS, NONE),
        fixed=True,
    )
    init_from: str | None = setting(
        None,
        "fine-tuning: begin with the weights, tokens and model of another attempt, by its name or folder, or of a "
        "pretrained BART, mBART, T5 or mT5, by its folder or name",
        metavar="ATTEMPT",
        fixed=True,
    )
    retrieve_pairs: int = setting(
        2_000_000,
        "keep up to N training pairs in the attempt, so that it can give replies of people, by --retrieve; 0: none",
        least=0,
    )
    embeddings: str | None = setting(None, EMBEDDINGS, unset="as the attempt has it", metavar="e5|FOLDER|none")
    log_every: int = setting(10, "steps between two lines of metrics.jsonl", least=1)
    save_every: int = setting(500, "steps between two checkpoints", least=1)
    save_minutes: float | None = setting(
        None, "also write a checkpoint when the last one is this many minutes old", above=0
    )
    keep: int = setting(1, "number of newest checkpoints that are kept, beside the best one", least=1)
    validate_every: int | None = setting(
        None, "steps between two validations", unset="an epoch, at least 100 and usually at most 2,000", least=1
    )
    report_to: str = setting(
        TENSORBOARD,
        "where the metrics go beside metrics.jsonl; wandb: TensorBoard's files, which its client follows",
        choices=(TENSORBOARD, WANDB, NONE),
    )
    time_limit: str | None = setting(
        None, "save and finish after hours:minutes[:seconds], with exit code 0", metavar="H:MM", stored=False
    )
    probe: str | None = setting(
        None, "text file of at most 20 questions; the replies are shown at each validation; or none", metavar="FILE"
    )
    quiet: bool = setting(False, "print only errors, warnings and the summary at the end", stored=False)
    dry_run: bool = setting(
        False, "run a few steps, print the parameters, memory and time of the run, and exit", stored=False
    )
    # The time at which --time-limit is over, in seconds since the epoch; a process hands it to those that it starts.
    deadline: float | None = None
    profile: str | None = setting(
        None, "record a trace of the steps A to B for TensorBoard's Profile page", metavar="A:B", stored=False
    )
    # The settings that the preset may set: neither a flag nor a file has set them.
    not_given: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        attempt_directory(self.attempt)
        if self.time_limit is not None:
            seconds_of(self.time_limit)
        if self.embeddings not in (None, NONE) and not self.retrieve_pairs:
            raise UserError("--embeddings: no pairs are kept to be found; leave out --retrieve-pairs 0")
        steps = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12})", self.profile or "1:1")
        if not steps or not 1 <= int(steps[1]) <= int(steps[2]):
            raise UserError(f"--profile {self.profile}: two steps A:B with 1 <= A <= B are needed, for example 100:110")

    @property
    def profiled_steps(self) -> range:
        """The steps of --profile, counted from 1."""
        if self.profile is None:
            return range(0)
        first, last = map(int, self.profile.split(":"))
        return range(first, last + 1)

    @property
    def directory(self) -> Path:
        """The folder with the attempt's checkpoints, vocabulary and metrics."""
        return attempt_directory(self.attempt).absolute()


def check_client(report_to: str) -> None:
    """Raise UserError if --report-to needs a client that is not installed. Nothing is imported, which takes seconds."""
    if report_to != WANDB:
        return
    spec = importlib.util.find_spec("wandb")
    if spec is None or spec.origin is None:  # a folder wandb/, where the client writes, has no origin
        raise UserError("--report-to wandb: wandb is not installed; run `pip install wandb`")


def seconds_of(time_limit: str) -> int:
    """Return the seconds of a --time-limit. Raises UserError for any other text."""
    match = re.fullmatch(r"(\d{1,5}):([0-5]\d)(?::([0-5]\d))?", time_limit, re.ASCII)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not total:
        raise UserError(f"--time-limit {time_limit}: expected hours:minutes, such as 35:30 or 0:45, above zero")
    return total


def preset_for(pairs: int) -> str:
    """Return the preset of a corpus with this many training pairs."""
    return next((name for name, limit in FEWER_PAIRS_THAN.items() if pairs < limit), [*PRESETS][-1])


def values_of_preset(name: str, architecture: str) -> dict[str, Any]:
    """Return the settings of a preset for models of an architecture, by name."""
    if architecture != TRANSFORMER:
        return PRESETS[name]
    values = {key: value for key, value in PRESETS[name].items() if key not in OF_RECURRENT}
    return {**values, **OF_PRESETS_WITH_TRANSFORMER}


def settings_of_presets() -> frozenset[str]:
    """Return the names of all settings that a preset sets."""
    return frozenset(name for values in (*PRESETS.values(), OF_PRESETS_WITH_TRANSFORMER) for name in values)
