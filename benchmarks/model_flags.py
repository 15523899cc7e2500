"""Flags of the measured model and of the measurement, which the train, decode and scaling benchmarks share."""

import dataclasses
from typing import Any

from chatbot.config.corpus import LEAST_VOCABULARY
from chatbot.config.model import OF_RECURRENT, RECURRENT, TRANSFORMER, ModelSettings
from chatbot.config.training import Settings
from chatbot.flags import Flags, compose, replace, setting


def architecture_flag() -> Any:
    """Return the field of a `Flags` class for the layers of the models; see `with_architecture`."""
    return setting(RECURRENT, "layers of the models", group="model", choices=(RECURRENT, TRANSFORMER))


def with_architecture(settings: Settings, architecture: str) -> Settings:
    """Return settings with these layers; a Transformer has none of the settings of recurrent ones."""
    if architecture == RECURRENT:
        return settings
    return replace(settings, architecture=architecture, **{name: getattr(ModelSettings, name) for name in OF_RECURRENT})


@dataclasses.dataclass(frozen=True)
class SizeFlags(Flags):
    """Sizes of the model and of a batch. Raises UserError for a value out of its range."""

    rnn_size: int = setting(512, "units of each recurrent layer", group="model", least=2)
    embedding_size: int = setting(256, "units of an embedding", least=1)
    vocabulary_size: int = setting(16_000, "maximum size of the vocabulary", least=LEAST_VOCABULARY)
    max_length: int = setting(20, "tokens of the longest question and reply", least=2)
    batch_size: int = setting(64, "pairs in a step", least=1)

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
        5, "rounds with one turn for each row of the table; results are medians over rounds", group="measuring", least=1
    )
    steps: int = setting(60, "steps in a turn", least=1)
