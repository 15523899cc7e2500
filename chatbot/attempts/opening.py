"""Opens an attempt for training: its lock, its settings and data beside those of a resumed run, its first files."""

import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import filelock

from chatbot.attempts.checkpoint import check_model_size
from chatbot.attempts.files import (
    BEST,
    CONFIG,
    DATA,
    DICTIONARY,
    LAST,
    LOCK,
    METRICS,
    NGRAMS,
    RETRIEVAL,
    SAVING,
    TOO_LARGE,
    VOCABULARY,
    trained_directory,
)
from chatbot.attempts.settings import OF_PAIRS, OF_WEIGHTS, changed_settings, storable, stored_settings
from chatbot.commands import program
from chatbot.config.corpus import PIECES
from chatbot.config.training import Settings
from chatbot.corpus.pieces import open_tokenizer
from chatbot.corpus.vocabulary import Vocabulary
from chatbot.decoding.ngrams import Ngrams
from chatbot.durable import read_json, remove_unfinished, write_file, write_json
from chatbot.errors import EXIT_INTERRUPTED, UserError

# Seconds to wait for the lock. A run that fails removes the folder that it has made, and the lock file in it.
LOCK_TIMEOUT = 0.5


@contextmanager
def attempt_lock(settings: Settings) -> Iterator[None]:
    """Lock the attempt, and remove what a killed process was writing in it.

    A block that ends before a step was recorded or saved leaves no files of an attempt. Raises UserError when another
    process trains it.
    """
    directory = settings.run.directory
    lock = lock_of(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        in_use = f"--attempt {settings.run.attempt}: another process is training it"
        raise UserError(f"{in_use}; wait for it, or use another --attempt") from None
    except OSError as error:
        raise UserError(f"{directory}: cannot be made ({error.strerror}); check the folder above it") from None
    try:
        with _ctrl_c_removes(directory):
            remove_unfinished(directory)
            yield
    finally:
        remove_unused(directory)
        lock.release()


@contextmanager
def _ctrl_c_removes(directory: Path) -> Iterator[None]:
    """Let Ctrl-C remove what is unused, where it would end the process at once, as in a command before its steps."""

    def leave(number: int, frame: FrameType | None) -> None:
        remove_unused(directory)
        os._exit(EXIT_INTERRUPTED)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def remove_unused(directory: Path) -> bool:
    """Remove the files of an attempt without a recorded or saved step, and its folder; return whether it has none."""
    if any((directory / name).exists() for name in (BEST, LAST, METRICS, SAVING)) or any(directory.glob("ckpt-*")):
        return False
    shutil.rmtree(directory / RETRIEVAL, ignore_errors=True)
    with suppress(OSError):  # the folder has other files, or the one above other attempts
        for name in (CONFIG, DATA, DICTIONARY, LOCK, NGRAMS, TOO_LARGE, VOCABULARY):
            (directory / name).unlink(missing_ok=True)
        directory.rmdir()
        directory.parent.rmdir()
    return True


def lock_of(directory: Path) -> filelock.BaseFileLock:
    """Return the lock of an attempt, not acquired yet. Any thread may acquire and release it."""
    return filelock.FileLock(directory / LOCK, timeout=LOCK_TIMEOUT, thread_local=False)


def has_checkpoint(settings: Settings) -> bool:
    """Return whether there is a checkpoint to resume from. Raises UserError for one without `last` or config.json."""
    directory = settings.run.directory
    if not directory.exists():
        return False
    if (directory / SAVING).exists() and not (directory / LAST).exists():
        return False  # a process was killed while it saved the first checkpoint
    pattern = rf"ckpt-\d+\.json|{BEST}|{LAST}"
    saved = sorted(path.name for path in directory.iterdir() if re.fullmatch(pattern, path.name))
    for name in (LAST, CONFIG):
        if saved and not (directory / name).exists():
            raise UserError(
                f"{directory / name}: missing, though {saved[0]} is there; "
                f"restore it from a backup, use another --attempt, or remove {directory} to start from scratch"
            )
    return bool(saved)


def check_settings(settings: Settings) -> None:
    """Raise UserError when a fixed setting has changed, or the checkpoints are of a smaller model."""
    changed = changed_settings(stored_settings(settings.run.directory / CONFIG), settings)
    if changed:
        other = f"--attempt {settings.run.attempt} was started with other settings: {'; '.join(changed)}"
        raise UserError(f"{other}. {_short_way(settings)}; another --attempt starts from scratch")
    check_model_size(settings.run.directory, settings.model)


def check_data(settings: Settings, now: dict[str, Any]) -> bool:
    """Return whether the resumed attempt learns both directions. Raises UserError unless its data.json is as `now`."""
    path = settings.run.directory / DATA
    try:
        then = read_json(path)
        pairs = int(then["pairs"])
        both = bool(then["both_directions"])
        same_words, same_pairs = (then[name] == now[name] for name in ("vocabulary", "fingerprint"))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        raise UserError(f"{path}: missing or damaged; restore it from a backup, or use another --attempt") from None
    if not same_words:
        raise UserError(
            f"{settings.run.directory / VOCABULARY}: not the vocabulary that the attempt was started with; "
            "restore it from a backup, or use another --attempt"
        )
    if not same_pairs:
        changed = changed_settings(stored_settings(settings.run.directory / CONFIG), settings, OF_PAIRS)
        why = f"changed were {'; '.join(changed)}" if changed else "the flags are the same, a file has changed"
        remedy = _short_way(settings) if changed else "The old files resume it"
        raise UserError(
            f"--attempt {settings.run.attempt} was started with other training pairs ({pairs:,} then, "
            f"{now['pairs']:,} now; {why}). {remedy}; another --attempt starts from scratch"
        )
    return both


def _short_way(settings: Settings) -> str:
    return f"`{program('train')} --attempt {settings.run.attempt}` resumes it with its own settings"


def write_attempt(
    settings: Settings, vocabulary: Vocabulary, data: dict[str, Any], ngrams: Ngrams | None = None
) -> None:
    """Write config.json, vocabulary.txt, data.json, and with n-grams ngrams.npz."""
    directory = settings.run.directory
    directory.mkdir(parents=True, exist_ok=True)
    write_file(directory / VOCABULARY, vocabulary.content())
    if settings.corpus.dictionary is not None:
        path = Path(settings.corpus.dictionary)
        is_json = settings.corpus.tokenizer == PIECES  # also where it was a vocab.txt
        write_file(directory / DICTIONARY, open_tokenizer(path).to_str().encode() if is_json else path.read_bytes())
    if ngrams is not None:
        write_file(directory / NGRAMS, ngrams.content())
    write_json(directory / DATA, data)
    write_json(directory / CONFIG, storable(settings))


def other_attempt(settings: Settings) -> Path:
    """Return the directory of the attempt of --init-from. Raises UserError when its weights are of other sizes."""
    name = settings.run.init_from
    assert name is not None
    directory = trained_directory(name, "--init-from")
    if changed := changed_settings(stored_settings(directory / CONFIG), settings, OF_WEIGHTS):
        raise UserError(
            f"--init-from {name}: an attempt of other sizes to start from: {'; '.join(changed)}; leave these flags out "
            "to take its sizes"
        )
    return directory
