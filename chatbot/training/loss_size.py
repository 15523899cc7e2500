"""How many logits a tower computes at a time: from the memory of its device and the size of its share."""

import math
from collections.abc import Sequence

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.model.fast.projection import MOST_ELEMENTS, LossSize, logits_in
from chatbot.model.packing import MULTIPLE
from chatbot.training.devices import Tower


def loss_size(settings: Settings, towers: Sequence[Tower], machines: int = 1) -> LossSize:
    """Return the size of the loss on these towers. towers: of this machine; each machine has as many."""
    memories = [tower.memory for tower in towers if tower.memory is not None]
    return LossSize(logits_in(min(memories, default=None)), most_tokens(settings, len(towers) * machines))


def check_sampled_logits(settings: Settings, tokens: int) -> None:
    """Raise UserError when a sampled softmax, which has no chunks, has more logits than kernels can index.

    tokens: `most_tokens`.
    """
    logits = 0 if settings.model.sampled_softmax is None else tokens * (1 + settings.model.sampled_softmax)
    if logits > MOST_ELEMENTS:
        raise UserError(
            f"--sampled-softmax: {logits:,} logits of a tower's share at once, more than {MOST_ELEMENTS:,}; "
            "use a smaller --batch-size, with --accumulate"
        )


def most_tokens(settings: Settings, towers: int) -> int:
    """Return the most target tokens of a piece of a tower's share, fillers included. towers: of all machines."""
    learning, longest = settings.learning, settings.model.max_length
    if learning.batch_tokens is not None:  # the pairs of a share, and of a piece, are rounded up
        return math.ceil(learning.batch_tokens / towers) + 2 * longest + MULTIPLE
    of_share = math.ceil(learning.batch_size * learning.accumulate / towers)
    return math.ceil(of_share / learning.accumulate) * longest + MULTIPLE
