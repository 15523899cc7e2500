"""What a model is and how it learns."""

import dataclasses

from chatbot.config.corpus import NONE, EncodingSettings, check_none
from chatbot.errors import UserError
from chatbot.flags import setting

DATA, MODEL, LEARNING, SPEED = "data", "model", "learning", "speed"


@dataclasses.dataclass(frozen=True)
class LearningSettings(EncodingSettings):
    """What would be the same on one device and on a thousand. Raises UserError for a value out of range."""

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
    scale_learning_rate: str = setting(
        "none",
        LEARNING,
        "fit the learning rate to batches larger than 64 pairs: by how many times they are larger, or its square root",
        choices=("linear", "sqrt", "none"),
    )
    warm_up: int | None = setting(
        None,
        LEARNING,
        "steps in which the learning rate rises from zero; default: none, and a pass over the data, 1,000 steps at "
        "most, with --scale-learning-rate",
        kind=int,
        least=0,
    )
    max_gradient_norm: float = setting(
        5.0, LEARNING, "gradients with a larger global norm are scaled down to it", kind=float, above=0
    )
    batch_size: int = setting(64, LEARNING, "pairs in a step, over all towers", kind=int, least=1, fixed=True)
    accumulate: int = setting(
        1,
        LEARNING,
        "batches whose gradients are summed before an update, which equals a batch so many times as large in the "
        "memory of one",
        kind=int,
        least=1,
        fixed=True,
    )
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
    precision: str = setting(
        "auto",
        SPEED,
        "of the factors of matrix products; weights, states and sums stay float32. auto: bfloat16 where this device "
        "is found to be faster at it, else float32",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    fast: tuple[str, ...] = setting(
        ("lstm", "loss"),
        SPEED,
        "fast paths that are on, each of which computes what the plain model does: lstm (on the CPU: real tokens only, "
        "and a gradient of its own), loss (projection and cross-entropy in one, in chunks), or none",
        many=True,
        choices=("lstm", "loss", NONE),
    )
    sampled_softmax: int | None = setting(
        None,
        SPEED,
        "learn to tell each target from so many drawn tokens instead of the whole vocabulary: faster where that is "
        "large, less exact; validation is always exact",
        kind=int,
        least=1,
    )
    seed: int = setting(1, LEARNING, "of weights, order and dropout", kind=int, least=0, most=2**31 - 1, fixed=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            raise UserError("--steps and --epochs: give one of the two")
        check_none("fast", self.fast)
        if self.bidirectional and self.rnn_size % 2:
            raise UserError(
                f"--rnn-size {self.rnn_size}: both directions share it; make it even or say --no-bidirectional"
            )
