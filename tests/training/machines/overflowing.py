"""train.py, where the loss of one pair overflows, in this process and in those that it starts."""

import sys
from typing import Any

from chatbot import commands
from chatbot.corpus import batches
from chatbot.corpus.batches import Batch, pad_batch

PAIR = 5


def overflowing(pairs: Any, rows: Any, *lengths: int) -> Batch:
    """As `pad_batch`, with weights for one pair by which its loss is infinite."""
    batch = pad_batch(pairs, rows, *lengths)
    batch.weights[rows == PAIR] *= 1e37
    return batch


if __name__ in ("__main__", "__mp_main__"):
    vars(batches)["pad_batch"] = overflowing
if __name__ == "__main__":
    sys.exit(commands.main("train"))
