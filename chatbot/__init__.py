"""An attention seq2seq chatbot, trained by synchronous data parallelism on one or many GPUs.

`train` trains a chatbot, `load` loads a trained one, `Bot.reply` replies. An error that the caller can fix is a
`UserError`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from chatbot.errors import UserError
from chatbot.version import __version__

if TYPE_CHECKING:
    from chatbot.api import Bot, TrainingResult, load, train

__all__ = ["Bot", "TrainingResult", "UserError", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    """Import `chatbot.api` when it is first used, which commands and their worker processes do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("chatbot.api"), name)
