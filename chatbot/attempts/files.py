"""The files of an attempt, which is the folder of a named training run."""

import contextlib
from pathlib import Path

from chatbot.command_line import program
from chatbot.config.attempts import CHECKPOINTS
from chatbot.durable import read_json
from chatbot.errors import UserError

# The settings and the vocabulary of an attempt.
CONFIG = "config.json"
VOCABULARY = "vocabulary.txt"
# The n-grams of its training pairs, if --ngrams is given.
NGRAMS = "ngrams.npz"
# The folder of the training pairs with the index of their questions.
RETRIEVAL = "retrieval"
# JSON files that name a checkpoint: the newest, and the one with the best validation.
LAST = "last"
BEST = "best"
# An attempt's copy of the user dictionary, so that questions are tokenised as the training pairs were.
DICTIONARY = "dictionary.txt"
# The description of the training pairs, and the size of batches that several GPUs have no memory for in one graph.
DATA = "data.json"
TOO_LARGE = "too_large.json"
# Says that a folder is an export, which has the settings and the vocabulary of its attempt, too.
EXPORT = "export.json"
# Held while a process trains the attempt; there while the first checkpoint is written, which `last` does not name yet.
LOCK = "lock"
SAVING = "saving"


def is_validated(directory: Path) -> bool:
    """Return whether validation has chosen the checkpoint of an attempt that is used."""
    return (directory / BEST).exists()


def learned_questions(directory: Path) -> list[str]:
    """Return the questions that an attempt offers for a first conversation; none where data.json has none."""
    return [text for text in _texts(directory, "questions") if text.isprintable()]


def files_without_pairs(directory: Path) -> list[str]:
    """Return the files of --data that gave an attempt no pair; none where data.json does not say so."""
    return _texts(directory, "without_pairs")


def _texts(directory: Path, name: str) -> list[str]:
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        return [*map(str, read_json(directory / DATA)[name])]
    return []


def trained_directory(attempt: str, flag: str = "--attempt") -> Path:
    """Return the absolute directory of an existing attempt. Raises UserError without one, and for an export.

    attempt: the name of a folder in checkpoints/, or the path of a folder anywhere. flag: the one that names it.
    """
    path = Path(attempt)
    subject = f"{flag} {attempt}"
    is_name = path.name == attempt  # it has no slash
    for directory in (CHECKPOINTS / attempt, path) if is_name else (path,):
        if (directory / EXPORT).exists():
            use = f"{program('chat')} --export {directory}"
            raise UserError(f"{subject}: an export, not an attempt; talk to it with {use}")
        if (directory / CONFIG).exists():
            return directory.absolute()
    if not is_name:
        raise UserError(f"{subject}: no attempt, {path.absolute()} has no {CONFIG}; check the path")
    known = sorted(path.parent.name for path in CHECKPOINTS.glob(f"*/{CONFIG}"))
    have = f"there are: {', '.join(known)}" if known else f"none is there; train one with {program('train')}"
    none = f"no such attempt in {CHECKPOINTS.absolute()}"
    other = ", or of a pretrained model" if flag == "--init-from" else ""
    raise UserError(f"{subject}: {none}; {have}, or give the path of its folder{other}")
