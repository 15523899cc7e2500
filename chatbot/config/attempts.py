"""Where an attempt, one named training run, keeps its files."""

import re
from pathlib import Path

from chatbot.errors import UserError
from chatbot.flags import program

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


def trained_directory(attempt: str) -> Path:
    """The directory of an attempt that exists. Raises UserError, with the names of those that do, for another."""
    directory = attempt_directory(attempt)
    if not directory.is_dir():
        known = sorted(path.parent.name for path in CHECKPOINTS.glob("*/config.json"))
        have = f"there are: {', '.join(known)}" if known else f"there is none yet: {program('train.py')}"
        raise UserError(f"--attempt {attempt}: no such attempt in {CHECKPOINTS}/; {have}")
    return directory
