"""What an attempt keeps on disk, so that it needs nothing else and the same command resumes it.

    checkpoints/<attempt>/config.json      the settings
                          vocabulary.txt   a token a line
                          data.json        what the training data were
                          ckpt-<step>.*    weights, optimizer and step (the last and the best)
                          last, best       which checkpoint is which
                          metrics.jsonl    a line a logged step

This file begins an attempt and checks that a resumed one fits; checkpoints.py has the rest. Order,
batches and dropout are functions of (seed, step), so the step is also the position in the data and
the random state.
"""

import json
import os
from pathlib import Path
from typing import Any

from chatbot.config import Settings, changed_settings, storable, stored_settings
from chatbot.corpus.vocabulary import Vocabulary
from chatbot.errors import UserError


def begin_attempt(settings: Settings, vocabulary: Vocabulary, data: dict[str, Any]) -> None:
    """Write config.json, vocabulary.txt and data.json of a new attempt."""
    directory = settings.directory
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary.save(directory / "vocabulary.txt")
    write_json(directory / "data.json", data)
    write_json(directory / "config.json", storable(settings))


def check_settings(settings: Settings) -> bool:
    """Whether the attempt exists. Raises UserError when a setting that it keeps for life has changed."""
    path = settings.directory / "config.json"
    if not path.exists():
        if any(settings.directory.glob("ckpt-*")):
            raise UserError(
                f"{path}: missing, though there are checkpoints beside it; "
                "restore it from a backup, or use another --attempt"
            )
        return False
    changed = changed_settings(stored_settings(path), settings)
    if changed:
        raise UserError(
            f"--attempt {settings.attempt} was begun with other settings: {'; '.join(changed)}. "
            "Give the old values to go on, or another --attempt to begin anew"
        )
    return True


def check_data(settings: Settings, data: dict[str, Any]) -> bool:
    """Whether the resumed attempt learns both directions. Raises UserError when it gets other pairs than before."""
    path = settings.directory / "data.json"
    try:
        then = json.loads(path.read_text(encoding="utf-8"))
        same, count, both = then["fingerprint"] == data["fingerprint"], int(then["pairs"]), then["both_directions"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path}: missing or damaged; restore it from a backup, or use another --attempt") from None
    if not same:
        raise UserError(
            f"--data: not the pairs that --attempt {settings.attempt} was trained on "
            f"({count:,} then, {data['pairs']:,} now). "
            "Give the old files to go on, or another --attempt to begin anew"
        )
    return bool(both)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
