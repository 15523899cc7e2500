"""What can be known about an attempt from its files, in a millisecond and without TensorFlow."""

import dataclasses
import datetime
import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import filelock

from chatbot.attempts.checkpoint import (
    better_last,
    first_whole,
    group_sizes,
    pointed_steps,
    read_pointer,
    resumable_steps,
    saved_steps,
)
from chatbot.attempts.files import CONFIG, DATA, DICTIONARY, LAST, LOCK, NGRAMS, SAVING, VOCABULARY, files_without_pairs
from chatbot.attempts.settings import stored_settings
from chatbot.config.attempts import CHECKPOINTS
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import load_vocabulary
from chatbot.durable import size_of
from chatbot.errors import UserError

# The states of an attempt. READY: it can be resumed.
# EMPTY: no checkpoint was saved yet. DAMAGED: so is a checkpoint, and another one takes its place.
READY = "ready"
TRAINING = "training"
EMPTY = "empty"
DAMAGED = "damaged"
BROKEN = "broken"
DEFAULT_CORPUS = "ChatterBot"


@dataclasses.dataclass
class Attempt:
    """An attempt in checkpoints/. What is not known, such as after damage, has its default."""

    name: str
    state: str = EMPTY
    problem: str = ""  # why it is broken or damaged
    data: tuple[str, ...] = ()  # names of the files of training pairs
    pairs: int | None = None
    rnn_size: int | None = None
    num_layers: int | None = None
    vocabulary: int | None = None  # tokens
    weights: int | None = None  # single values
    step: int | None = None  # of the last checkpoint
    best_nats_per_character: float | None = None  # of validation
    best_step: int | None = None
    saved: str | None = None  # the local time of the last checkpoint, in the format of ISO 8601
    bytes: int = 0  # of the whole folder


def all_attempts() -> list[Attempt]:
    """Return the attempts in checkpoints/, those saved last first: values of different pairs cannot be compared."""
    if not CHECKPOINTS.is_dir():
        return []
    folders = sorted(path for path in CHECKPOINTS.iterdir() if path.is_dir() and not path.name.startswith("."))
    return sorted(map(read_attempt, folders), key=lambda attempt: attempt.saved or "", reverse=True)


def read_attempt(directory: Path) -> Attempt:
    """Return what the files of an attempt say. An attempt that cannot be used is BROKEN, with the reason."""
    attempt = Attempt(directory.name, bytes=size_of(directory))
    try:
        attempt.state = _read(directory, attempt)
    except UserError as error:
        attempt.state, attempt.problem = BROKEN, _reason(error, directory)
    except FileNotFoundError as error:
        attempt.state, attempt.problem = BROKEN, f"{Path(error.filename).name}: missing"
    except Exception as error:  # whatever is wrong with one attempt, the others are listed
        attempt.state, attempt.problem = BROKEN, f"{type(error).__name__}: {error}".splitlines()[0]
    if is_training(directory):
        attempt.state = TRAINING
        attempt.problem = ""
    return attempt


def _reason(error: UserError, directory: Path) -> str:
    """Return what is wrong in the folder, without the remedy."""
    text = str(error).replace(f"{directory}{os.sep}", "").replace(f"{directory.absolute()}{os.sep}", "")
    return text.split("; ")[0]


def _read(directory: Path, attempt: Attempt) -> str:
    """Set what the files say, and return the state. Raises UserError for a file that is missing or damaged."""
    saved = saved_steps(directory)
    if not (directory / CONFIG).exists() and not saved:
        return EMPTY
    settings = stored_settings(directory / CONFIG)
    attempt.data = data_names(settings, files_without_pairs(directory))
    attempt.rnn_size = settings.model.units
    attempt.num_layers = settings.model.num_layers
    if not (directory / LAST).exists() and ((directory / SAVING).exists() or not saved):
        return EMPTY
    last = read_pointer(directory / LAST)
    saved_at = datetime.datetime.fromtimestamp((directory / LAST).stat().st_mtime).astimezone()
    attempt.step, attempt.saved = last["step"], saved_at.isoformat(timespec="seconds")
    nats = last.get("best_nats")
    if isinstance(nats, int | float) and math.isfinite(nats):
        attempt.best_nats_per_character, attempt.best_step = nats, int(last.get("best_step", 0))
    if (at_end := better_last(directory)) is not None:
        attempt.best_nats_per_character = at_end
        attempt.best_step = attempt.step
    _read_words(directory, settings, attempt)
    attempt.weights = _read_checkpoints(directory, attempt)["weights"]
    return DAMAGED if attempt.problem else READY


def _read_checkpoints(directory: Path, attempt: Attempt) -> Counter[str]:
    """Return the sizes of the checkpoint to resume, and set what is wrong with one that is named.

    Raises UserError if none is whole.
    """
    for_training = resumable_steps(directory)
    for_chat = [*reversed(pointed_steps(directory).values()), *for_training]
    resumed, sizes, damage = first_whole(directory, for_training, group_sizes)
    chatting, _, other_damage = first_whole(directory, for_chat, group_sizes)
    for used, error in ((resumed, damage), (chatting, other_damage)):
        if error is not None:
            attempt.problem = attempt.problem or f"{_reason(error, directory)}; ckpt-{used} is used"
    return sizes


def _read_words(directory: Path, settings: Settings, attempt: Attempt) -> None:
    """Check the files that a conversation needs beside the weights."""
    attempt.pairs, fingerprint = _described(directory / DATA)
    vocabulary = load_vocabulary(directory / VOCABULARY)
    if vocabulary.fingerprint() != fingerprint:
        raise UserError(f"{VOCABULARY}: damaged, not the vocabulary that the attempt was begun with")
    attempt.vocabulary = len(vocabulary)
    for name, needed in {NGRAMS: settings.model.ngrams, DICTIONARY: settings.corpus.dictionary}.items():
        if needed and not (directory / name).exists():
            raise UserError(f"{name}: missing")


def _described(path: Path) -> tuple[int, str]:
    """Return the number of training pairs, and the fingerprint of the vocabulary."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return int(values["pairs"]), str(values["vocabulary"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: damaged") from None


def data_names(settings: Settings, without_pairs: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the files of training pairs. without_pairs: those of --data that gave none."""
    corpus = settings.corpus
    files = corpus.data or tuple(file for file in (corpus.source_file, corpus.target_file) if file)
    files = tuple(file for file in files if file not in without_pairs)
    return tuple(Path(file).name for file in files) or (DEFAULT_CORPUS,)


def is_training(directory: Path) -> bool:
    """Return whether a process trains the attempt."""
    try:
        if not (directory / LOCK).exists():
            return False
        with filelock.FileLock(directory / LOCK, timeout=0):
            return False
    except filelock.Timeout:
        return True
    except OSError:  # a folder that cannot be read or written
        return False


def check_saved(attempt: Attempt, command: str) -> None:
    """Raise UserError for an attempt that is broken or has no checkpoint yet."""
    if attempt.state == BROKEN:
        raise UserError(f"{command} {attempt.name}: {attempt.problem}; leave it out, or restore the file from a backup")
    if attempt.step is None:
        raise UserError(f"{command} {attempt.name}: no checkpoint was saved yet; train it first")


def check_not_training(directory: Path) -> None:
    """Raise UserError if a process trains the attempt."""
    if is_training(directory):
        raise UserError(f"{directory.name}: another process is training it; wait for it")


def as_json(attempt: Attempt) -> dict[str, Any]:
    """Return the object of --json."""
    values = dataclasses.asdict(attempt)
    return {**values, "problem": attempt.problem or None, "resumable": attempt.state in (READY, EMPTY, DAMAGED)}
