"""Settings of the optimisation. They do not depend on the number of devices."""

import dataclasses
from collections.abc import Collection

from chatbot.errors import UserError
from chatbot.flags import Flags, setting

# Values of --schedule.
CONSTANT = "constant"
INVERSE_SQUARE_ROOT = "inverse-square-root"
COSINE = "cosine"
ONE_CYCLE = "one-cycle"
# Parts of the model that --freeze accepts.
PARTS = ("embedding", "encoder", "decoder", "attention", "projection")

NATS = "nats_per_character"
QUESTION_NATS = "question_nats_per_character"
# Metrics that --best-by accepts.
LOWER_IS_BETTER = (NATS, "nats_per_token", QUESTION_NATS)
HIGHER_IS_BETTER = ("bleu", "chrf", "relevance_at_1")


@dataclasses.dataclass(frozen=True)
class LearningSettings(Flags):
    """Settings of the optimizer, the batches, the number of steps and the numerical precision."""

    optimizer: str = setting(
        "adam",
        "optimisation algorithm that updates the weights",
        group="learning",
        choices=("adam", "sgd", "momentum"),
        fixed=True,
    )
    learning_rate: float = setting(0.002, "learning rate after the warm-up", unset="set by --preset, or 0.002", above=0)
    scale_learning_rate: str = setting(
        "none",
        "multiply the learning rate by batch size / the preset's batch size (linear) or by its square root (sqrt)",
        unset="linear if --batch-size was chosen for GPUs, otherwise none",
        choices=("linear", "sqrt", "none"),
    )
    warm_up: int | None = setting(
        None,
        "number of steps over which the learning rate rises from zero",
        unset="set by --preset, or 0; with --scale-learning-rate, one epoch, but at most 100 steps or 30% of the run",
        minimum=0,
    )
    schedule: str = setting(
        CONSTANT,
        "learning rate schedule after the warm-up; cosine and one-cycle require --steps or --epochs",
        choices=(CONSTANT, INVERSE_SQUARE_ROOT, COSINE, ONE_CYCLE),
    )
    max_gradient_norm: float = setting(5.0, "clip gradients to this global norm", above=0)
    weight_decay: float = setting(
        0.0,
        "decoupled weight decay (AdamW): each update multiplies weights, but not biases, by 1 - learning rate * R",
        minimum=0,
    )
    label_smoothing: float = setting(
        0.0, "fraction of each target's probability to spread over the vocabulary", minimum=0, maximum=0.9
    )
    average: float = setting(
        0.0,
        "decay of the exponential moving average of the weights, such as 0.999; 0 disables averaging",
        unset="set by --preset, or 0",
        minimum=0,
    )
    freeze: str | None = setting(
        None,
        f"comma-separated list of the parts of the model to freeze: {', '.join(PARTS)}",
        fixed=True,
        metavar="PARTS",
    )
    batch_size: int = setting(
        64,
        "number of pairs per step, over all towers",
        unset="set by --preset, or 64; on GPUs 512 for each, but at most 4 times that default, and at least 700 "
        "steps per epoch; except with --init-from, --accumulate, --asynchronous and --model-parallel",
        minimum=1,
        fixed=True,
    )
    accumulate: int = setting(
        1, "number of batches whose gradients are summed before each update", minimum=1, fixed=True
    )
    batch_tokens: int | None = setting(
        None,
        "number of tokens per step (pairs times the longest question or reply), instead of --batch-size",
        minimum=1,
        fixed=True,
    )
    steps: int | None = setting(None, "stop after N steps", unset="determined by --epochs", minimum=1)
    epochs: int | None = setting(
        None,
        "stop after N passes over the training pairs",
        unset="with validation, until --patience ends training; otherwise 10 epochs, at least 1,000 steps",
        minimum=1,
    )
    patience: int = setting(
        3, "stop after N consecutive validations without improvement, but not before step 1,000", minimum=1
    )
    best_by: str = setting(
        NATS,
        "metric that selects the best checkpoint and that --patience refers to: "
        f"{', '.join(LOWER_IS_BETTER + HIGHER_IS_BETTER)}",
        choices=LOWER_IS_BETTER + HIGHER_IS_BETTER,
        metavar="MEASURE",
    )
    both_directions: str = setting(
        "auto",
        "also learn to predict questions from answers; auto: on with validation and fewer than 300,000 pairs",
        choices=("auto", "on", "off"),
        fixed=True,
    )
    precision: str = setting(
        "auto",
        "data type of matrix products; auto: float32, or bfloat16 on CPUs that are known to be faster with bfloat16",
        group="speed",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    deterministic: bool = setting(
        False,
        "use slower GPU operations whose results are bit-identical in every run, as on CPUs",
        negatable=True,
    )
    seed: int = setting(
        1,
        "random seed for the initial weights, the order of the pairs, and dropout",
        group="learning",
        minimum=0,
        maximum=2**31 - 1,
        fixed=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            raise UserError("--steps and --epochs are mutually exclusive; use only one")
        if self.average >= 1:
            raise UserError(f"--average {self.average}: must be below 1")
        schedule = f"--schedule {self.schedule}"
        if self.schedule in (COSINE, ONE_CYCLE) and self.steps is None and self.epochs is None:
            raise UserError(f"{schedule}: needs the length of the run; give --steps or --epochs")
        if self.schedule == INVERSE_SQUARE_ROOT and not self.warm_up and self.scale_learning_rate == "none":
            raise UserError(f"{schedule}: needs a warm-up; give --warm-up, such as 1000")
        check_parts(self.frozen, PARTS)
        if self.weight_decay * self.learning_rate >= 1:
            raise UserError(
                f"--weight-decay {self.weight_decay}: at --learning-rate {self.learning_rate} an update would remove "
                f"the weights; choose less than {1 / self.learning_rate:.4g}"
            )
        if self.best_by == QUESTION_NATS and self.both_directions == "off":
            raise UserError(
                f"--best-by {QUESTION_NATS} needs a model trained in both directions; leave out --both-directions off"
            )

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the frozen parts of the model."""
        return () if self.freeze is None else tuple(part.strip() for part in self.freeze.split(","))


def check_parts(frozen: Collection[str], parts: Collection[str]) -> None:
    """Raise UserError if a frozen part does not exist in the model, or if all parts are frozen."""
    for part in frozen:
        if part not in parts:
            raise UserError(f"--freeze {part}: no such part; the parts of the model are {', '.join(parts)}")
    if set(frozen) == set(parts):
        raise UserError(f"--freeze {','.join(frozen)}: nothing is left to train; leave out a part")
