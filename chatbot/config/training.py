"""What train.py is told: the source of its flags, of their --help and of config.json."""

import dataclasses
from pathlib import Path

from chatbot.config.attempts import attempt_directory
from chatbot.config.corpus import EncodingSettings
from chatbot.errors import UserError
from chatbot.flags import setting

DATA, MODEL, LEARNING, DEVICES, RUN = "data", "model", "learning", "devices", "run"


@dataclasses.dataclass(frozen=True)
class Settings(EncodingSettings):
    """The settings of one attempt, validated when made. Raises UserError for a value out of range."""

    max_length: int = setting(
        50,
        DATA,
        "longest question and longest reply, in tokens, the end symbol counted; longer pairs are left out",
        kind=int,
        least=2,
        most=10_000,
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
    batch_tokens: int | None = setting(
        None,
        LEARNING,
        "instead of --batch-size: positions in a step, padding counted, of the longer side, over all towers",
        kind=int,
        least=1,
        fixed=True,
    )
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
        super().__post_init__()
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
