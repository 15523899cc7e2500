"""Settings of the optimisation. They do not depend on the number of devices."""

import dataclasses
from collections.abc import Collection

from chatbot.errors import UserError
from chatbot.flags import Flags, setting

LEARNING = "learning"
SPEED = "speed"
# The values of --schedule.
CONSTANT = "constant"
INVERSE_SQUARE_ROOT = "inverse-square-root"
COSINE = "cosine"
ONE_CYCLE = "one-cycle"
# The parts of the model for --freeze.
PARTS = ("embedding", "encoder", "decoder", "attention", "projection")

NATS = "nats_per_character"
QUESTION_NATS = "question_nats_per_character"
# The measures that --best-by takes.
LOWER_IS_BETTER = (NATS, "nats_per_token", QUESTION_NATS)
HIGHER_IS_BETTER = ("bleu", "chrf", "relevance_at_1")


@dataclasses.dataclass(frozen=True)
class LearningSettings(Flags):
    """Update rule, batches, length of the run and precision. Raises UserError for a value out of range."""

    optimizer: str = setting("adam", "update rule", group=LEARNING, choices=("adam", "sgd", "momentum"), fixed=True)
    learning_rate: float = setting(
        0.002, "learning rate of the optimizer, after the warm-up", unset="by --preset, or 0.002", above=0
    )
    scale_learning_rate: str = setting(
        "none", "multiply the rate by batch size / 64, or by its square root", choices=("linear", "sqrt", "none")
    )
    warm_up: int | None = setting(
        None,
        "steps of rising rate",
        unset="by --preset, or 0, with --scale-learning-rate an epoch, at most 1,000 steps",
        least=0,
    )
    schedule: str = setting(
        CONSTANT,
        "learning rate after the warm-up. cosine and one-cycle need --steps or --epochs",
        choices=(CONSTANT, INVERSE_SQUARE_ROOT, COSINE, ONE_CYCLE),
    )
    max_gradient_norm: float = setting(5.0, "scale gradients down where their global norm exceeds R", above=0)
    weight_decay: float = setting(
        0.0, "multiply the weights, not the biases, by 1 - learning rate * R before each update (AdamW)", least=0
    )
    label_smoothing: float = setting(
        0.0, "share of each target's probability that the loss spreads over the vocabulary", least=0, most=0.9
    )
    average: float = setting(
        0.0,
        "use an exponential moving average of the weights with this decay, such as 0.999",
        unset="by --preset, or 0",
        least=0,
    )
    freeze: str | None = setting(
        None, f"parts that are not trained, joined by commas, of {', '.join(PARTS)}", fixed=True, metavar="PARTS"
    )
    batch_size: int = setting(64, "pairs in a step, over all towers", unset="by --preset, or 64", least=1, fixed=True)
    accumulate: int = setting(
        1, "sum the gradients of N batches before an update: a larger batch in the same memory", least=1, fixed=True
    )
    batch_tokens: int | None = setting(
        None, "instead of --batch-size: pairs in a step times their longest question or reply", least=1, fixed=True
    )
    steps: int | None = setting(None, "stop after this many steps", unset="by --epochs", least=1)
    epochs: int | None = setting(
        None,
        "stop after this many passes over the training pairs",
        unset="with validation by --patience, else 10 and at least 1,000 steps",
        least=1,
    )
    patience: int = setting(3, "stop after N validations in a row without a new best, from step 1,000 on", least=1)
    best_by: str = setting(
        NATS,
        f"measure that chooses the best checkpoint and ends the run: {', '.join(LOWER_IS_BETTER + HIGHER_IS_BETTER)}",
        choices=LOWER_IS_BETTER + HIGHER_IS_BETTER,
        metavar="MEASURE",
    )
    both_directions: str = setting(
        "auto",
        "also learn the question from the answer; auto: with validation and fewer than 300,000 pairs",
        choices=("auto", "on", "off"),
        fixed=True,
    )
    precision: str = setting(
        "auto",
        "number type of matrix products. auto: float32, or bfloat16 where a CPU was measured to be faster with it",
        group=SPEED,
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    deterministic: bool = setting(
        False,
        "on GPUs, equal commands give equal results to the bit, by slower operations; on CPUs they always do",
        negatable=True,
    )
    seed: int = setting(
        1,
        "seed of the initial weights, the order of the pairs, and dropout",
        group=LEARNING,
        least=0,
        most=2**31 - 1,
        fixed=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            raise UserError("--steps and --epochs: give one of the two")
        if self.average >= 1:
            raise UserError(f"--average {self.average}: must be below 1")
        schedule = f"--schedule {self.schedule}"
        if self.schedule in (COSINE, ONE_CYCLE) and self.steps is None and self.epochs is None:
            raise UserError(f"{schedule}: it needs the length of the run; give --steps or --epochs")
        if self.schedule == INVERSE_SQUARE_ROOT and not self.warm_up and self.scale_learning_rate == "none":
            raise UserError(f"{schedule}: the rate falls from the end of the warm-up on; give --warm-up, such as 1000")
        check_parts(self.frozen, PARTS)
        if self.weight_decay * self.learning_rate >= 1:
            raise UserError(
                f"--weight-decay {self.weight_decay}: at --learning-rate {self.learning_rate} an update would remove "
                f"the weights; choose less than {1 / self.learning_rate:.4g}"
            )
        if self.best_by == QUESTION_NATS and self.both_directions == "off":
            raise UserError(
                f"--best-by {QUESTION_NATS} needs a model of both directions; leave out --both-directions off"
            )

    @property
    def frozen(self) -> tuple[str, ...]:
        """The parts of --freeze."""
        return () if self.freeze is None else tuple(part.strip() for part in self.freeze.split(","))


def check_parts(frozen: Collection[str], parts: Collection[str]) -> None:
    """Raise UserError when a part of --freeze is not one of the parts of the model, or all of them are frozen."""
    for part in frozen:
        if part not in parts:
            raise UserError(f"--freeze {part}: no such part; the parts of the model are {', '.join(parts)}")
    if set(frozen) == set(parts):
        raise UserError(f"--freeze {','.join(frozen)}: nothing is left to train; leave out a part")
