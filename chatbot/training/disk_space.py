"""The space on the disk for the checkpoints of a run."""

import re
import shutil
from pathlib import Path

from chatbot.config.attempts import BEST, LAST, SAVING
from chatbot.errors import UserError
from chatbot.model.checkpoint_files import read_pointer, step_of, with_manifest


def check_space(directory: Path, size: int, count: int) -> None:
    """Raise UserError when the disk of a folder has no space for `count` more checkpoints of `size` bytes each."""
    disk = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(disk).free
    if free < size * count:
        raise UserError(
            f"{directory}: not enough space on the disk; checkpoints of {_megabytes(size)} each need "
            f"{_megabytes(size * count)}, and {_megabytes(free)} are free: free some space, or run in a folder "
            "on another disk"
        )


def remove_unnamed(directory: Path, keep: int) -> None:
    """Remove old checkpoints of an attempt, and what a killed process or a failed save leaves of others.

    keep: the number of the newest ones that stay, beside those that `last` and `best` name.
    """
    steps = [read_pointer(path)["step"] for path in pointers_in(directory)]
    older = [name for name in with_manifest(directory) if steps and step_of(name) <= steps[0]]
    kept = {*(f"ckpt-{step}" for step in steps), *older[:keep]}
    for path in directory.iterdir():
        found = re.match(r"ckpt-\d+(?=[._])", path.name)
        if found and (path.is_dir() or found[0] not in kept or re.search(r"\.(tempstate\d+|part)$", path.name)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if (directory / SAVING).exists():
        (directory / SAVING).unlink()


def pointers_in(directory: Path) -> list[Path]:
    """Return the files of an attempt that name a checkpoint: `last`, then `best`."""
    return [path for path in (directory / LAST, directory / BEST) if path.exists()]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
