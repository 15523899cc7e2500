"""The settings of every command: the one source of flags, of --help and of config.json.

Nothing here imports TensorFlow, so that `--help` answers at once.
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatbot.errors import UserError
from chatbot.flags import check_fields, flag_of, parse_flags, setting

CHECKPOINTS = Path("checkpoints")
TENSORBOARD = Path("tensorboard")

DATA, MODEL, LEARNING, DEVICES, RUN, SEARCH = "data", "model", "learning", "devices", "run", "search"


def attempt_directory(attempt: str) -> Path:
    """Where an attempt keeps its files. Raises UserError for a name that could lead elsewhere."""
    if not re.fullmatch(r"\w[\w.-]*", attempt) or len(attempt.encode()) > 200:
        raise UserError(
            f"--attempt {attempt!r}: a short name of letters, digits, '_', '-' and '.' is needed, without slashes"
        )
    return CHECKPOINTS / attempt


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of one attempt, validated when made. Raises UserError for a value out of range."""

    data: tuple[str, ...] = setting(
        (),
        DATA,
        "question-answer pairs: .tsv (question, tab, answer) or .jsonl (a list of utterances a line); "
        "default: the Chinese ChatterBot corpus",
        many=True,
        metavar="FILE",
    )
    validation: str | None = setting(
        None, DATA, "pairs to validate on; keeps the best checkpoint and stops early", metavar="FILE"
    )
    max_length: int = setting(
        50,
        DATA,
        "longest question and longest reply, in tokens, the end symbol counted; longer pairs are left out",
        kind=int,
        least=2,
        most=10_000,
        fixed=True,
    )
    vocabulary_size: int = setting(
        16000,
        DATA,
        "most entries in the vocabulary: every character seen, then the most frequent words",
        kind=int,
        least=5,
        fixed=True,
    )

    cell: str = setting("lstm", MODEL, "recurrent cell", choices=("lstm", "gru"), fixed=True)
    rnn_size: int = setting(256, MODEL, "units of each recurrent layer", kind=int, least=1, fixed=True)
    num_layers: int = setting(
        1, MODEL, "recurrent layers of the encoder, and of the decoder", kind=int, least=1, fixed=True
    )
    embedding_size: int = setting(256, MODEL, "units of a token's embedding", kind=int, least=1, fixed=True)
    bidirectional: bool = setting(
        True,
        MODEL,
        "the encoder reads each question in both directions, half of rnn-size units each",
        kind=bool,
        fixed=True,
    )
    attention: str = setting("luong", MODEL, "attention score", choices=("luong", "bahdanau", "none"), fixed=True)
    keep_prob: float = setting(0.5, MODEL, "share of units that dropout keeps", kind=float, above=0, most=1)

    optimizer: str = setting("adam", LEARNING, "update rule", choices=("adam", "sgd", "momentum"), fixed=True)
    learning_rate: float = setting(0.002, LEARNING, "step size of the optimizer", kind=float, above=0)
    max_gradient_norm: float = setting(
        5.0, LEARNING, "gradients with a larger global norm are scaled down to it", kind=float, above=0
    )
    batch_size: int = setting(64, LEARNING, "pairs in a step, over all towers", kind=int, least=1, fixed=True)
    steps: int | None = setting(None, LEARNING, "stop after this many steps", kind=int, least=1)
    epochs: int | None = setting(None, LEARNING, "stop after this many passes over the data", kind=int, least=1)
    patience: int = setting(3, LEARNING, "stop after this many validations without a new best", kind=int, least=1)
    both_directions: str = setting(
        "auto",
        LEARNING,
        "learn to find the question for an answer, too, which lowers the held-out loss when pairs are few; "
        "auto: with --validation and fewer than 50,000 pairs",
        choices=("auto", "on", "off"),
        fixed=True,
    )
    seed: int = setting(1, LEARNING, "of weights, order and dropout", kind=int, least=0, most=2**31 - 1, fixed=True)

    gpus: str | None = setting(
        None,
        DEVICES,
        "GPUs to train on, by the ids nvidia-smi shows; default: every GPU found",
        metavar="0,1,2,3",
        stored=False,
    )
    towers: int | None = setting(
        None,
        DEVICES,
        "without GPUs: split the CPU into this many towers; with one GPU: split that",
        kind=int,
        least=1,
        stored=False,
    )
    log_device_placement: bool = setting(False, DEVICES, "print the device of each operation", kind=bool, stored=False)
    selftest: bool = setting(
        False,
        DEVICES,
        "prove on these devices that many towers train as one does, print the verdict and leave",
        kind=bool,
        stored=False,
    )

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
        check_fields(self)
        attempt_directory(self.attempt)
        if self.steps is not None and self.epochs is not None:
            raise UserError("--steps and --epochs: give one of the two")
        if self.bidirectional and self.rnn_size % 2:
            raise UserError(
                f"--rnn-size {self.rnn_size}: both directions share it; make it even or say --no-bidirectional"
            )

    @property
    def directory(self) -> Path:
        """Where the attempt's checkpoints, vocabulary and metrics are."""
        return attempt_directory(self.attempt)


@dataclasses.dataclass(frozen=True)
class ChatSettings:
    """What chat.py is told."""

    attempt: str = setting("default", RUN, "the training run to talk to")
    beam_size: int = setting(5, SEARCH, "hypotheses that the search keeps; 1 is greedy", kind=int, least=1, most=100)
    length_penalty: float = setting(
        1.0,
        SEARCH,
        "exponent of the length penalty; larger prefers longer replies",
        kind=float,
        least=0,
        most=10,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        attempt_directory(self.attempt)


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """What python -m chatbot.evaluation is told."""

    data: tuple[str, ...] = setting(
        ..., DATA, "held-out question-answer pairs, .tsv or .jsonl", many=True, metavar="FILE"
    )
    attempt: str = setting("default", RUN, "the training run to measure")
    beam_size: int = setting(1, SEARCH, "hypotheses that the search keeps; 1 is greedy", kind=int, least=1, most=100)

    def __post_init__(self) -> None:
        check_fields(self)
        attempt_directory(self.attempt)


def train_settings(arguments: Sequence[str] | None = None) -> Settings:
    """The command line of train.py: defaults, then --config, then flags. Raises UserError."""
    given = parse_flags(
        Settings,
        "train.py",
        "Train an attention seq2seq chatbot on question-answer pairs, one tower a device.",
        arguments,
    )
    values = read_settings(Path(given["config"])) if "config" in given else {}
    if {"steps", "epochs"} & given.keys():
        values.pop("steps", None)
        values.pop("epochs", None)
    return Settings(**{**values, **given})


def chat_settings(arguments: Sequence[str] | None = None) -> ChatSettings:
    """The command line of chat.py. Raises UserError."""
    return ChatSettings(**parse_flags(ChatSettings, "chat.py", "Talk to a trained chatbot.", arguments))


def evaluation_settings(arguments: Sequence[str] | None = None) -> EvaluationSettings:
    """The command line of python -m chatbot.evaluation. Raises UserError."""
    about = "Measure a trained chatbot on held-out pairs. The last line is one JSON object."
    return EvaluationSettings(**parse_flags(EvaluationSettings, "-m chatbot.evaluation", about, arguments))


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a JSON file, by name. Raises UserError for a file that does not hold settings."""
    remedy = "restore it from a backup, or use another"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: settings cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: damaged, not JSON; {remedy}") from None
    if not isinstance(values, dict) or not isinstance(values.get("data", []), list):
        raise UserError(f"{path}: damaged, a JSON object of settings expected; {remedy}")
    unknown = sorted(values.keys() - {field.name for field in dataclasses.fields(Settings)})
    if unknown:
        raise UserError(f"{path}: unknown setting {unknown[0]!r}; see python train.py --help for the names")
    return {name: tuple(value) if name == "data" else value for name, value in values.items()}


def stored_settings(path: Path) -> Settings:
    """The settings an attempt was trained with, from its config.json. Raises UserError."""
    try:
        return Settings(**read_settings(path))
    except UserError as error:
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def storable(settings: Settings) -> dict[str, Any]:
    """What config.json holds: every setting that is not about the machine or this one start."""
    values = dataclasses.asdict(settings)
    return {f.name: values[f.name] for f in dataclasses.fields(Settings) if f.metadata["stored"]}


def changed_settings(then: Settings, now: Settings) -> list[str]:
    """The fixed settings that differ, each as '--flag then -> now'."""
    return [
        f"{flag_of(f.name)} {getattr(then, f.name)} -> {getattr(now, f.name)}"
        for f in dataclasses.fields(Settings)
        if f.metadata["fixed"] and getattr(then, f.name) != getattr(now, f.name)
    ]
