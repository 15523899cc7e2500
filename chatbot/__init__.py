"""An attention seq2seq chatbot, trained by synchronous data parallelism on one or many GPUs.

`train` trains a chatbot, `load` loads a trained one, `Bot.reply` replies. An error that the caller can fix is a
`UserError`.
"""

from chatbot.api import Bot, TrainingResult, load, train
from chatbot.errors import UserError
from chatbot.version import __version__

__all__ = ["Bot", "TrainingResult", "UserError", "__version__", "load", "train"]
