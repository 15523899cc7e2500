"""The files of an attempt, which is self-contained: chat needs no other file, and the same command resumes training.

    checkpoints/<attempt>/config.json      the settings
                          vocabulary.txt   one token a line
                          dictionary.txt   a copy of the user dictionary, with which questions are tokenised
                          ngrams.npz       the n-grams of the training pairs (--ngrams)
                          data.json        a description of the training data
                          retrieval/       the training pairs, with the index of their questions
                          ckpt-<step>.*    weights and optimizer state, of the last steps and of the best step:
                                           .safetensors, and .json, the manifest
                          last, best       JSON: the name of a checkpoint, its step, and the best validation
                          lock             held while a process trains the attempt
                          saving           there while the first checkpoint is written, which `last` does not name yet
                          metrics.jsonl    one line a logged step
                          too_large.json   the size of batches that several GPUs have no memory for in one graph

An export has the files that a chat needs, and export.json.
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
