"""An attention seq2seq chatbot, trained by synchronous data parallelism on one or many GPUs."""

from chatbot.errors import UserError
from chatbot.version import __version__

__all__ = ["UserError", "__version__"]
