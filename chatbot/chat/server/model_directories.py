"""What the directory of a model, an attempt or an export, says about it."""

from pathlib import Path

from chatbot.attempts.attempt import size_of
from chatbot.config.attempts import BEST, LAST
from chatbot.export.manifest import MANIFEST
from chatbot.model.checkpoint_files import read_pointer, verified_manifest

# Memory of a model beside its weights: graphs and buffers.
BESIDE_WEIGHTS = 50_000_000


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
