"""Describes an attempt (a training run) by reading its files, without importing TensorFlow."""

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
    better_last_nats,
    first_intact,
    group_sizes,
    pointer_steps,
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

# The states of an attempt.
READY = "ready"  # can be resumed
TRAINING = "training"  # a process is training the attempt
EMPTY = "empty"  # has no checkpoint yet
DAMAGED = "damaged"  # a checkpoint is damaged, but an intact one can be resumed
BROKEN = "broken"  # cannot be used
DEFAULT_CORPUS = "ChatterBot"


@dataclasses.dataclass
class Attempt:
    """The description of an attempt in checkpoints/. Unknown values, such as those in damaged files, have defaults."""

    name: str
    state: str = EMPTY
    problem: str = ""  # why the attempt is broken or damaged
    data: tuple[str, ...] = ()  # names of the files with training pairs
    pairs: int | None = None
    rnn_size: int | None = None
    num_layers: int | None = None
    vocabulary: int | None = None  # number of tokens
    weights: int | None = None  # number of scalar weights
    step: int | None = None  # step of the last checkpoint
    best_nats_per_character: float | None = None  # lowest validation loss
    best_step: int | None = None
    saved: str | None = None  # local time of the last checkpoint, in ISO 8601
    bytes: int = 0  # size of the whole folder


def all_attempts() -> list[Attempt]:
    """Return all attempts in checkpoints/, most recently saved first."""
    if not CHECKPOINTS.is_dir():
        return []
    folders = sorted(path for path in CHECKPOINTS.iterdir() if path.is_dir() and not path.name.startswith("."))
    return sorted(map(read_attempt, folders), key=lambda attempt: attempt.saved or "", reverse=True)


def read_attempt(directory: Path) -> Attempt:
    """Describe the attempt in a folder. If it cannot be used, its state is BROKEN and `problem` has the reason."""
    attempt = Attempt(directory.name, bytes=size_of(directory))
    try:
        attempt.state = _read_files(directory, attempt)
    except UserError as error:
        attempt.state, attempt.problem = BROKEN, _reason(error, directory)
    except FileNotFoundError as error:
        attempt.state, attempt.problem = BROKEN, f"{Path(error.filename).name}: missing"
    except Exception as error:  # one broken attempt must not prevent listing the others
        attempt.state, attempt.problem = BROKEN, f"{type(error).__name__}: {error}".splitlines()[0]
    if is_training(directory):
        attempt.state = TRAINING
        attempt.problem = ""
    return attempt


def _reason(error: UserError, directory: Path) -> str:
    """Return the problem stated by an error, without the path of the folder and the remedy."""
    text = str(error).replace(f"{directory}{os.sep}", "").replace(f"{directory.absolute()}{os.sep}", "")
    return text.split("; ")[0]


def _read_files(directory: Path, attempt: Attempt) -> str:
    """Fill in the values of an attempt and return its state. Raises UserError if a file is missing or damaged."""
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
    if (at_end := better_last_nats(directory)) is not None:
        attempt.best_nats_per_character = at_end
        attempt.best_step = attempt.step
    _read_chat_files(directory, settings, attempt)
    attempt.weights = _read_checkpoints(directory, attempt)["weights"]
    return DAMAGED if attempt.problem else READY


def _read_checkpoints(directory: Path, attempt: Attempt) -> Counter[str]:
    """Return the tensor group sizes of the checkpoint from which training would resume.

    If the last checkpoint is damaged, this is an earlier one, and `attempt.problem` describes the damage. Raises
    UserError if no checkpoint is intact.
    """
    training_steps = resumable_steps(directory)
    chat_steps = [*reversed(pointer_steps(directory).values()), *training_steps]
    training_step, sizes, training_damage = first_intact(directory, training_steps, group_sizes)
    chat_step, _, chat_damage = first_intact(directory, chat_steps, group_sizes)
    for step, error in ((training_step, training_damage), (chat_step, chat_damage)):
        if error is not None:
            attempt.problem = attempt.problem or f"{_reason(error, directory)}; ckpt-{step} is used"
    return sizes


def _read_chat_files(directory: Path, settings: Settings, attempt: Attempt) -> None:
    """Read and check the files that a chat needs in addition to the weights."""
    attempt.pairs, fingerprint = _read_data(directory / DATA)
    vocabulary = load_vocabulary(directory / VOCABULARY)
    if vocabulary.fingerprint() != fingerprint:
        raise UserError(f"{VOCABULARY}: damaged, not the vocabulary that the attempt was started with")
    attempt.vocabulary = len(vocabulary)
    for name, needed in {NGRAMS: settings.model.ngrams, DICTIONARY: settings.corpus.dictionary}.items():
        if needed and not (directory / name).exists():
            raise UserError(f"{name}: missing")


def _read_data(path: Path) -> tuple[int, str]:
    """Read the number of training pairs and the fingerprint of the vocabulary from data.json."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return int(values["pairs"]), str(values["vocabulary"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: damaged") from None


def data_names(settings: Settings, without_pairs: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the training files in the settings, without the files in `without_pairs`."""
    corpus = settings.corpus
    files = corpus.data or tuple(file for file in (corpus.source_file, corpus.target_file) if file)
    files = tuple(file for file in files if file not in without_pairs)
    return tuple(Path(file).name for file in files) or (DEFAULT_CORPUS,)


def is_training(directory: Path) -> bool:
    """Return whether a process is training the attempt."""
    try:
        if not (directory / LOCK).exists():
            return False
        with filelock.FileLock(directory / LOCK, timeout=0):
            return False
    except filelock.Timeout:
        return True
    except OSError:  # the folder is not readable or writable
        return False


def check_saved(attempt: Attempt, command: str) -> None:
    """Raise UserError if an attempt is broken or has no checkpoint yet."""
    if attempt.state == BROKEN:
        raise UserError(f"{command} {attempt.name}: {attempt.problem}; leave it out, or restore the file from a backup")
    if attempt.step is None:
        raise UserError(f"{command} {attempt.name}: no checkpoint was saved yet; train it first")


def check_not_training(directory: Path) -> None:
    """Raise UserError if a process is training the attempt."""
    if is_training(directory):
        raise UserError(f"{directory.name}: another process is training it; wait for it")


def as_json(attempt: Attempt) -> dict[str, Any]:
    """Return the JSON object that --json prints for an attempt."""
    values = dataclasses.asdict(attempt)
    return {**values, "problem": attempt.problem or None, "resumable": attempt.state in (READY, EMPTY, DAMAGED)}
