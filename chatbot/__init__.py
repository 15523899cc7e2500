"""An attention seq2seq chatbot, trained by synchronous data parallelism on one or many GPUs.

`train` trains a chatbot, `load` loads a trained one, `Bot.reply` replies. Mistakes of the caller are `UserError`s.
"""

from chatbot.api import Bot, TrainingResult, load, train
from chatbot.errors import UserError
from chatbot.version import __version__

__all__ = ["Bot", "TrainingResult", "UserError", "__version__", "load", "train"]
