"""The names under which clients ask for models: those of attempts and exports on this machine."""

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

from chatbot.config.attempts import CHECKPOINTS, CONFIG, LAST

# Clients treat such models in a special way: they send other fields, or none that are important here.
SPECIAL = re.compile(
    r"(o\d|gpt|chatgpt|codex|omni|text-|davinci|babbage|whisper|tts|dall-e|computer-use)", re.IGNORECASE
)
PREFIX = "chatbot-"
# Seconds for which the names of the folder with all attempts are kept.
FRESH = 2.0


def client_names(directories: Sequence[Path]) -> dict[str, Path]:
    """Return the directories by the names for clients, which are unique and have a prefix where they are special."""
    names: dict[str, Path] = {}
    for directory in directories:
        name = directory.name
        while SPECIAL.match(name) or name in names:
            name = PREFIX + name
        names[name] = directory
    return names


def models_of(named: Path | None) -> Callable[[], Mapping[str, Path]]:
    """Return a function that returns the models that there are now: the named one, then all attempts in checkpoints/.

    named: the directory of an attempt or an export. Attempts need TensorFlow, and are left out without.
    """
    attempts = importlib.util.find_spec("tensorflow") is not None
    found: dict[str, Path] = {}
    read = -FRESH

    def models() -> Mapping[str, Path]:
        nonlocal found, read
        if monotonic() >= read + FRESH:
            others = sorted(path.parent.absolute() for path in CHECKPOINTS.glob(f"*/{CONFIG}")) if attempts else []
            usable = [path for path in others if (path / LAST).exists() and path != named]
            found, read = client_names([*([named] if named else []), *usable]), monotonic()
        return found

    return models
