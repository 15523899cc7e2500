"""The directories of attempts, and their files. An attempt is a named training run."""

import re
from pathlib import Path

from chatbot.errors import UserError
from chatbot.flags import program

CHECKPOINTS = Path("checkpoints")
TENSORBOARD = Path("tensorboard")

# The settings and the vocabulary of an attempt.
CONFIG, VOCABULARY = "config.json", "vocabulary.txt"
# The n-grams of its training pairs, if --ngrams is given.
NGRAMS = "ngrams.npz"
# JSON files that name a checkpoint: the newest, and the one with the best validation.
LAST, BEST = "last", "best"
# An attempt's copy of the user dictionary, so that questions are tokenised as the training pairs were.
DICTIONARY = "dictionary.txt"
# The description of the training pairs.
DATA = "data.json"
# Says that a folder is an export, which has the settings and the vocabulary of its attempt, too.
EXPORT = "export.json"
# Held while a process trains the attempt; there while the first checkpoint is written, which `last` does not name yet.
LOCK, SAVING = "lock", "saving"


def attempt_directory(attempt: str) -> Path:
    """Return the directory of an attempt. Raises UserError for a name that is not a plain folder name."""
    if not re.fullmatch(r"\w[\w.-]*", attempt) or len(attempt.encode()) > 200:
        raise UserError(
            f"--attempt {attempt!r}: a short name of letters, digits, '_', '-' and '.' is needed, without slashes"
        )
    return CHECKPOINTS / attempt


def is_validated(directory: Path) -> bool:
    """Return whether validation has chosen the checkpoint of an attempt that is used."""
    return (directory / BEST).exists()


def trained_directory(attempt: str, flag: str = "--attempt") -> Path:
    """Return the absolute directory of an existing attempt. Raises UserError, with the existing names, without one, and
    for an export.

    attempt: the name of a folder in checkpoints/, or the path of a folder anywhere. flag: the one that names it.
    """
    path = Path(attempt)
    if path.name != attempt:  # it has a slash
        if not path.is_dir():
            raise UserError(f"{flag} {attempt}: no such attempt, {path.absolute()} is not a folder; check the path")
        if not (path / CONFIG).exists() and not (path / EXPORT).exists():
            raise UserError(f"{flag} {attempt}: not an attempt, the folder has no {CONFIG}; check the path")
        return _no_export(path, f"{flag} {attempt}")
    for directory in (CHECKPOINTS / attempt, path):
        if (directory / CONFIG).exists() or (directory / EXPORT).exists():
            return _no_export(directory, f"{flag} {attempt}")
    if (CHECKPOINTS / attempt).is_dir():
        raise UserError(
            f"{flag} {attempt}: {CHECKPOINTS / attempt} has no {CONFIG}; train it first, or restore the file from a "
            "backup"
        )
    known = sorted(path.parent.name for path in CHECKPOINTS.glob(f"*/{CONFIG}"))
    have = f"there are: {', '.join(known)}" if known else f"none is there; train one with {program('train.py')}"
    raise UserError(
        f"{flag} {attempt}: no such attempt in {CHECKPOINTS.absolute()}; {have}, or give the path of its folder"
    )


def _no_export(directory: Path, given: str) -> Path:
    """Return the absolute path of a directory. Raises UserError for an export. given: the flag and its value."""
    if (directory / EXPORT).exists():
        raise UserError(
            f"{given}: an export, not an attempt; talk to it with {program('chat.py')} --export {directory}"
        )
    return directory.absolute()
