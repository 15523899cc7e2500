"""No exchange: every device trains a model of its own, on its own share of each batch.

To measure what the exchange costs. Checkpoints, validation and replies are those of the first tower.
"""

from collections.abc import Sequence

from chatbot.config.training import Settings
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices import Tower
from chatbot.training.variable_update.replicated import copies
from chatbot.training.variable_update.synchronous import Synchronous


def independent(model: Seq2Seq, settings: Settings, towers: Sequence[Tower]) -> Synchronous:
    """A replica a tower, that meets nobody."""
    return Synchronous(
        model,
        copies(model, settings, towers),
        settings.learning.seed,
        accumulate=settings.learning.accumulate,
        staged=settings.parallel.staged_variables,
    )
