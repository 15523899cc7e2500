"""Flags of the measured model and of the measurement, which the train, decode and scaling benchmarks share."""

import dataclasses

from chatbot.config.corpus import LEAST_VOCABULARY
from chatbot.config.training import Settings
from chatbot.flags import check_fields, compose, setting


@dataclasses.dataclass(frozen=True)
class SizeFlags:
    """Sizes of the model and of a batch. Raises UserError for a value out of its range."""

    rnn_size: int = setting(512, "model", "units of each recurrent layer", kind=int, least=2)
    embedding_size: int = setting(256, "model", "units of an embedding", kind=int, least=1)
    vocabulary_size: int = setting(16_000, "model", "maximum size of the vocabulary", kind=int, least=LEAST_VOCABULARY)
    max_length: int = setting(20, "model", "tokens of the longest question and reply", kind=int, least=2)
    batch_size: int = setting(64, "model", "pairs in a step", kind=int, least=1)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def settings(self) -> Settings:
        """The settings of the model."""
        return compose(
            Settings,
            rnn_size=self.rnn_size,
            embedding_size=self.embedding_size,
            max_length=self.max_length,
            batch_size=self.batch_size,
        )


@dataclasses.dataclass(frozen=True)
class ModelFlags(SizeFlags):
    """Sizes, and the extent of a measurement."""

    rounds: int = setting(
        5,
        "measuring",
        "rounds with one turn for each row of the table; results are medians over rounds",
        kind=int,
        least=1,
    )
    steps: int = setting(60, "measuring", "steps in a turn", kind=int, least=1)
