"""Where an attempt, one named training run, keeps its files."""

import re
from pathlib import Path

from chatbot.errors import UserError

CHECKPOINTS = Path("checkpoints")
TENSORBOARD = Path("tensorboard")

# An attempt's copy of the user dictionary, so that questions are cut as the training pairs were.
DICTIONARY = "dictionary.txt"


def attempt_directory(attempt: str) -> Path:
    """Where an attempt keeps its files. Raises UserError for a name that could lead elsewhere."""
    if not re.fullmatch(r"\w[\w.-]*", attempt) or len(attempt.encode()) > 200:
        raise UserError(
            f"--attempt {attempt!r}: a short name of letters, digits, '_', '-' and '.' is needed, without slashes"
        )
    return CHECKPOINTS / attempt
