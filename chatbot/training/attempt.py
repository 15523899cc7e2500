"""The files of an attempt, which is self-contained: chat needs no other file, and the same command resumes training.

    checkpoints/<attempt>/config.json      the settings
                          vocabulary.txt   one token a line
                          dictionary.txt   a copy of the user dictionary, if there is one
                          data.json        a description of the training data
                          ckpt-<step>.*    weights and optimizer state, of the last step and of the best step
                          last, best       JSON: the name of a checkpoint, its step, and the best validation
                          lock             held while a process trains the attempt
                          metrics.jsonl    one line a logged step

This module creates an attempt, and checks the settings and data of a resumed one; checkpoints.py reads and writes the
checkpoints. Batches and dropout masks are functions of (seed, step), so the step is also the position in the data and
the random state.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from chatbot.config.attempts import DICTIONARY
from chatbot.config.stored import changed_corpus_settings, changed_settings, storable, stored_settings
from chatbot.config.training import Settings
from chatbot.corpus.encoding.vocabulary import Vocabulary
from chatbot.errors import UserError

# The share of the pairs by which another version of this program may differ in reading the same files.
MOST_CHANGED_PAIRS = 0.01


@contextmanager
def attempt_lock(settings: Settings) -> Iterator[None]:
    """Lock the attempt for this process. Raises UserError when another process trains it."""
    settings.run.directory.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(settings.run.directory / "lock", blocking=False):
            yield
    except filelock.Timeout:
        raise UserError(
            f"--attempt {settings.run.attempt}: another process is training it; wait for it, or use another --attempt"
        ) from None


def has_checkpoint(settings: Settings) -> bool:
    """Return whether the attempt has a checkpoint to resume from.

    Raises UserError if there is a checkpoint without `last` or config.json.
    """
    directory = settings.run.directory
    if not directory.exists():
        return False
    saved = sorted(path.name for path in directory.iterdir() if re.fullmatch(r"ckpt-\d+\.index|best|last", path.name))
    for name in ("last", "config.json"):
        if saved and not (directory / name).exists():
            raise UserError(
                f"{directory / name}: missing, though {saved[0]} is there; "
                f"restore it from a backup, use another --attempt, or remove {directory} to start from scratch"
            )
    return bool(saved)


def check_settings(settings: Settings) -> None:
    """Raise UserError when a fixed setting has changed."""
    changed = changed_settings(stored_settings(settings.run.directory / "config.json"), settings)
    if changed:
        raise UserError(
            f"--attempt {settings.run.attempt} was started with other settings: {'; '.join(changed)}. "
            "Use the old values to resume, or another --attempt to start from scratch"
        )


def check_data(settings: Settings, now: dict[str, Any]) -> bool:
    """Return whether the resumed attempt learns both directions. Raises UserError when its pairs have changed.

    now: the description of the present data, with the keys of data.json.
    """
    path = settings.run.directory / "data.json"
    try:
        then = json.loads(path.read_text(encoding="utf-8"))
        pairs, both = int(then["pairs"]), bool(then["both_directions"])
        same_words, same_pairs = (then[name] == now[name] for name in ("vocabulary", "fingerprint"))
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path}: missing or damaged; restore it from a backup, or use another --attempt") from None
    if not same_words:
        raise UserError(
            f"{settings.run.directory / 'vocabulary.txt'}: not the vocabulary that the attempt was started with; "
            "restore it from a backup, or use another --attempt"
        )
    if not same_pairs:
        changed = changed_corpus_settings(stored_settings(settings.run.directory / "config.json"), settings)
        few = abs(now["pairs"] - pairs) <= MOST_CHANGED_PAIRS * pairs
        if few and not changed and then.get("version") != now["version"]:
            print(
                f"--attempt {settings.run.attempt} was begun by an earlier version, which cleaned some pairs otherwise "
                f"({pairs:,} pairs then, {now['pairs']:,} now); it goes on with the pairs as they are cleaned now."
            )
            return both
        why = f"; changed were {'; '.join(changed)}" if changed else "; the flags are the same, a file has changed"
        raise UserError(
            f"--attempt {settings.run.attempt} was started with other training pairs ({pairs:,} then, "
            f"{now['pairs']:,} now{why}). Use the old files and flags to resume, or another --attempt to start from "
            "scratch"
        )
    return both


def write_attempt(settings: Settings, vocabulary: Vocabulary, data: dict[str, Any]) -> None:
    """Write config.json, vocabulary.txt and data.json."""
    settings.run.directory.mkdir(parents=True, exist_ok=True)
    vocabulary.save(settings.run.directory / "vocabulary.txt")
    if settings.corpus.dictionary is not None:
        (settings.run.directory / DICTIONARY).write_bytes(Path(settings.corpus.dictionary).read_bytes())
    write_json(settings.run.directory / "data.json", data)
    write_json(settings.run.directory / "config.json", storable(settings))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
