"""Opens an attempt for training: locks it, creates its first files, and checks that it can be resumed."""

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
from chatbot.attempts.settings import PAIR_SETTINGS, WEIGHT_SETTINGS, changed_settings, stored_settings, stored_values
from chatbot.commands import program
from chatbot.config.corpus import PIECES
from chatbot.config.training import Settings
from chatbot.corpus.pieces import open_tokenizer
from chatbot.corpus.vocabulary import Vocabulary
from chatbot.decoding.ngrams import Ngrams
from chatbot.durable import read_json, remove_unfinished, write_file, write_json
from chatbot.errors import EXIT_INTERRUPTED, UserError

# Seconds to wait for the lock, because a failed run still holds it while removing its folder.
LOCK_TIMEOUT = 0.5


@contextmanager
def attempt_lock(settings: Settings) -> Iterator[None]:
    """Lock an attempt for the duration of the `with` block, so that only one process trains it.

    Before the block, partial files of a killed process are removed. After the block, an attempt without any recorded
    or saved step is removed. Raises UserError if another process is training the attempt.
    """
    directory = settings.run.directory
    lock = file_lock_of(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        in_use = f"--attempt {settings.run.attempt}: another process is training it"
        raise UserError(f"{in_use}; wait for it, or use another --attempt") from None
    except OSError as error:
        raise UserError(f"{directory}: cannot be created ({error.strerror}); check the parent folder") from None
    try:
        with _remove_on_ctrl_c(directory):
            remove_unfinished(directory)
            yield
    finally:
        remove_unused(directory)
        lock.release()


@contextmanager
def _remove_on_ctrl_c(directory: Path) -> Iterator[None]:
    """On Ctrl-C during the `with` block, remove an unused attempt before the process ends.

    This has no effect if the process already handles Ctrl-C.
    """

    def remove_and_exit(number: int, frame: FrameType | None) -> None:
        remove_unused(directory)
        os._exit(EXIT_INTERRUPTED)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGINT, remove_and_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def remove_unused(directory: Path) -> bool:
    """Remove an attempt if it has no recorded or saved step. Return whether it was removed."""
    if any((directory / name).exists() for name in (BEST, LAST, METRICS, SAVING)) or any(directory.glob("ckpt-*")):
        return False
    shutil.rmtree(directory / RETRIEVAL, ignore_errors=True)
    with suppress(OSError):  # a folder that still contains other files is not removed
        for name in (CONFIG, DATA, DICTIONARY, LOCK, NGRAMS, TOO_LARGE, VOCABULARY):
            (directory / name).unlink(missing_ok=True)
        directory.rmdir()
        directory.parent.rmdir()
    return True


def file_lock_of(directory: Path) -> filelock.BaseFileLock:
    """Return the lock of an attempt, without acquiring it. Any thread can release the lock."""
    return filelock.FileLock(directory / LOCK, timeout=LOCK_TIMEOUT, thread_local=False)


def has_checkpoint(settings: Settings) -> bool:
    """Return whether there is a checkpoint to resume from. Raises UserError if `last` or config.json is missing."""
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
                f"{directory / name}: missing, though there is {saved[0]}; "
                f"restore it from a backup, use another --attempt, or remove {directory} to start from scratch"
            )
    return bool(saved)


def check_settings(settings: Settings) -> None:
    """Raise UserError if an attempt cannot be resumed with these settings.

    Some settings, such as the size of the model, must not change. The checkpoints must also be large enough for the
    model.
    """
    changed = changed_settings(stored_settings(settings.run.directory / CONFIG), settings)
    if changed:
        other = f"--attempt {settings.run.attempt} was started with other settings: {'; '.join(changed)}"
        raise UserError(f"{other}. {_resume_hint(settings)}; another --attempt starts from scratch")
    check_model_size(settings.run.directory, settings.model)


def check_data(settings: Settings, now: dict[str, Any]) -> bool:
    """Check that the resumed attempt was started with the same training data.

    Args:
        settings: The settings of this run.
        now: The content of data.json for this run.

    Returns:
        Whether the model also learns to predict questions from replies.

    Raises:
        UserError: If the pairs or the vocabulary differ.
    """
    path = settings.run.directory / DATA
    try:
        then = read_json(path)
        pairs = int(then["pairs"])
        both_directions = bool(then["both_directions"])
        same_vocabulary, same_pairs = (then[name] == now[name] for name in ("vocabulary", "fingerprint"))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        raise UserError(f"{path}: missing or damaged; restore it from a backup, or use another --attempt") from None
    if not same_vocabulary:
        raise UserError(
            f"{settings.run.directory / VOCABULARY}: not the vocabulary that the attempt was started with; "
            "restore it from a backup, or use another --attempt"
        )
    if not same_pairs:
        changed = changed_settings(stored_settings(settings.run.directory / CONFIG), settings, PAIR_SETTINGS)
        reason = f"changed: {'; '.join(changed)}" if changed else "the flags are the same, but a file has changed"
        remedy = _resume_hint(settings) if changed else "Restore the old files to resume it"
        raise UserError(
            f"--attempt {settings.run.attempt} was started with other training pairs ({pairs:,} then, "
            f"{now['pairs']:,} now; {reason}). {remedy}; another --attempt starts from scratch"
        )
    return both_directions


def _resume_hint(settings: Settings) -> str:
    return f"`{program('train')} --attempt {settings.run.attempt}` resumes it with its own settings"


def write_attempt(
    settings: Settings, vocabulary: Vocabulary, data: dict[str, Any], ngrams: Ngrams | None = None
) -> None:
    """Create the folder of an attempt and write all files except checkpoints and metrics.

    Args:
        settings: The settings for config.json. A user dictionary in them is copied.
        vocabulary: The vocabulary for vocabulary.txt.
        data: The content of data.json.
        ngrams: The n-grams for ngrams.npz; None without --ngrams.
    """
    directory = settings.run.directory
    directory.mkdir(parents=True, exist_ok=True)
    write_file(directory / VOCABULARY, vocabulary.content())
    if settings.corpus.dictionary is not None:
        path = Path(settings.corpus.dictionary)
        is_json = settings.corpus.tokenizer == PIECES  # other formats are also copied as tokenizer JSON
        write_file(directory / DICTIONARY, open_tokenizer(path).to_str().encode() if is_json else path.read_bytes())
    if ngrams is not None:
        write_file(directory / NGRAMS, ngrams.content())
    write_json(directory / DATA, data)
    write_json(directory / CONFIG, stored_values(settings))


def init_from_directory(settings: Settings) -> Path:
    """Return the folder of the --init-from attempt, whose weights initialise the model.

    Raises UserError if the shapes of its weights differ.
    """
    name = settings.run.init_from
    assert name is not None
    directory = trained_directory(name, "--init-from")
    if changed := changed_settings(stored_settings(directory / CONFIG), settings, WEIGHT_SETTINGS):
        raise UserError(
            f"--init-from {name}: an attempt of other sizes: {'; '.join(changed)}; leave these "
            "flags out to use its sizes"
        )
    return directory
