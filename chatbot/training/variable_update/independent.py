"""No exchange of gradients: every device trains a separate model on its share of each batch.

This is for measuring the cost of the exchange. Checkpoints, validation and replies use the first tower's model.
"""

from collections.abc import Sequence

from chatbot.config.training import Settings
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices.towers import Tower
from chatbot.training.variable_update.replicated import copies
from chatbot.training.variable_update.synchronous import Synchronous


def independent(model: Seq2Seq, settings: Settings, towers: Sequence[Tower]) -> Synchronous:
    """Make a step with a replica for each tower and no exchange between them."""
    return Synchronous(
        model,
        copies(model, settings, towers),
        settings.learning.seed,
        accumulate=settings.learning.accumulate,
        staged=settings.parallel.staged_variables,
    )
