"""The directories of attempts. An attempt is a named training run."""

import re
from pathlib import Path

from chatbot.errors import UserError
from chatbot.flags import program

CHECKPOINTS = Path("checkpoints")
TENSORBOARD = Path("tensorboard")

# An attempt's copy of the user dictionary, so that questions are tokenised as the training pairs were.
DICTIONARY = "dictionary.txt"


def attempt_directory(attempt: str) -> Path:
    """Return the directory of an attempt. Raises UserError for a name that is not a plain folder name."""
    if not re.fullmatch(r"\w[\w.-]*", attempt) or len(attempt.encode()) > 200:
        raise UserError(
            f"--attempt {attempt!r}: a short name of letters, digits, '_', '-' and '.' is needed, without slashes"
        )
    return CHECKPOINTS / attempt


def trained_directory(attempt: str) -> Path:
    """Return the directory of an existing attempt. Raises UserError, with the existing names, if there is none."""
    directory = attempt_directory(attempt)
    if not directory.is_dir():
        known = sorted(path.parent.name for path in CHECKPOINTS.glob("*/config.json"))
        have = f"there are: {', '.join(known)}" if known else f"there is none yet: {program('train.py')}"
        raise UserError(f"--attempt {attempt}: no such attempt in {CHECKPOINTS}/; {have}")
    return directory
