"""The files of an attempt (a training run). No other files are needed to chat with its model or to resume training.

    checkpoints/<attempt>/config.json      the settings
                          vocabulary.txt   one token per line
                          dictionary.txt   a copy of the user dictionary, for tokenising questions
                          ngrams.npz       the n-grams of the training pairs (--ngrams)
                          data.json        a description of the training data
                          retrieval/       the training pairs, with an index of their questions
                          ckpt-<step>.*    checkpoints of the latest steps and of the best step: .safetensors with
                                           weights and optimizer state, and .json with the manifest
                          last, best       JSON: the name of a checkpoint, its step, and the best validation
                          lock             locked while a process trains the attempt
                          saving           exists while the first checkpoint is written, until `last` points to it
                          metrics.jsonl    one line for each logged step
                          too_large.json   a batch size for which several GPUs ran out of memory

An export contains export.json and the files that a chat needs.
"""

import contextlib
from pathlib import Path

from chatbot.commands import program
from chatbot.config.attempts import CHECKPOINTS
from chatbot.durable import read_json
from chatbot.errors import UserError

CONFIG = "config.json"
VOCABULARY = "vocabulary.txt"
DICTIONARY = "dictionary.txt"
NGRAMS = "ngrams.npz"
DATA = "data.json"
RETRIEVAL = "retrieval"
LAST = "last"
BEST = "best"
LOCK = "lock"
SAVING = "saving"
METRICS = "metrics.jsonl"
TOO_LARGE = "too_large.json"
EXPORT = "export.json"


def is_validated(directory: Path) -> bool:
    """Return whether an attempt has a best checkpoint, which only validation can select."""
    return (directory / BEST).exists()


def learned_questions(directory: Path) -> list[str]:
    """Return the training questions in data.json that the chat suggests to new users."""
    return [text for text in _texts(directory, "questions") if text.isprintable()]


def files_without_pairs(directory: Path) -> list[str]:
    """Return the --data files that contain no pairs, according to data.json."""
    return _texts(directory, "without_pairs")


def _texts(directory: Path, name: str) -> list[str]:
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        return [*map(str, read_json(directory / DATA)[name])]
    return []


def trained_directory(attempt: str, flag: str = "--attempt") -> Path:
    """Return the absolute path of an existing attempt. Raises UserError if there is none, or if it is an export.

    Args:
        attempt: The name of a folder in checkpoints/, or the path of any folder.
        flag: The flag that specifies the attempt, for error messages.
    """
    path = Path(attempt)
    subject = f"{flag} {attempt}"
    is_name = path.name == attempt  # a path contains a slash
    for directory in (CHECKPOINTS / attempt, path) if is_name else (path,):
        if (directory / EXPORT).exists():
            use = f"{program('chat')} --export {directory}"
            raise UserError(f"{subject}: an export, not an attempt; chat with it using {use}")
        if (directory / CONFIG).exists():
            return directory.absolute()
    if not is_name:
        raise UserError(f"{subject}: not an attempt, {path.absolute()} has no {CONFIG}; check the path")
    known = sorted(path.parent.name for path in CHECKPOINTS.glob(f"*/{CONFIG}"))
    existing = f"there are {', '.join(known)}" if known else f"there are none; train one with {program('train')}"
    missing = f"no such attempt in {CHECKPOINTS.absolute()}"
    other = ", or of a pretrained model" if flag == "--init-from" else ""
    raise UserError(f"{subject}: {missing}; {existing}, or give the path of its folder{other}")
