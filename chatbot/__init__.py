"""A seq2seq chatbot with attention, trained by synchronous data parallelism on one or many GPUs.

Call `train` to train a chatbot, `load` to load a trained chatbot, and `Bot.reply` to get a reply. Errors that the
caller can fix are raised as `UserError`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from chatbot.errors import UserError
from chatbot.version import __version__

if TYPE_CHECKING:
    from chatbot.api import Bot, TrainingResult, load, train

__all__ = ["Bot", "TrainingResult", "UserError", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    """Import `chatbot.api` on first use. Commands and worker processes do not need it, so they start faster."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("chatbot.api"), name)
