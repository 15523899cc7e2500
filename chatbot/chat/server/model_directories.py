"""The models on this machine, attempts and exports: their names for clients, and what their directories say."""

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

from chatbot.attempts.attempt import size_of
from chatbot.config.attempts import BEST, CHECKPOINTS, CONFIG, LAST
from chatbot.export.manifest import MANIFEST
from chatbot.model.checkpoint_files import read_pointer, verified_manifest

# Clients treat such models in a special way: they send other fields, or none that are important here.
SPECIAL = re.compile(
    r"(o\d|gpt|chatgpt|codex|omni|text-|davinci|babbage|whisper|tts|dall-e|computer-use)", re.IGNORECASE
)
PREFIX = "chatbot-"
# Seconds for which the names of the folder with all attempts are kept.
FRESH = 2.0
# Memory of a model beside its weights: graphs and buffers.
BESIDE_WEIGHTS = 50_000_000


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


def pointer_of(directory: Path) -> Path:
    """Return the file of a model that changes with its checkpoint."""
    names = (MANIFEST, BEST) if (directory / MANIFEST).exists() or (directory / BEST).exists() else (LAST,)
    return next((directory / name for name in names if (directory / name).exists()), directory / LAST)


def version_of(directory: Path) -> tuple[str, int, int]:
    """Return what changes when a model has a newer checkpoint. Raises OSError."""
    path = pointer_of(directory)
    status = path.stat()
    return path.name, status.st_mtime_ns, status.st_size


def estimated_bytes(directory: Path) -> int:
    """Return about how many bytes of memory a model takes: those of the files of its weights, and some more."""
    if (directory / MANIFEST).exists():
        return size_of(directory) + BESIDE_WEIGHTS
    sizes = [path.stat().st_size for path in directory.glob("ckpt-*.data-*")]
    return max(sizes, default=0) + BESIDE_WEIGHTS


def checked_step(directory: Path) -> int | None:
    """Return the step of the newest checkpoint of an attempt; None for an export.

    Raises UserError if the checkpoint is damaged, in place of which `load_model` would load an older one.
    """
    if (directory / MANIFEST).exists():
        return None
    pointer = read_pointer(pointer_of(directory))
    verified_manifest(directory / pointer["checkpoint"])
    return int(pointer["step"])
