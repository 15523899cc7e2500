"""The space on the disk for the checkpoints of a run."""

import shutil
from pathlib import Path

from chatbot.errors import UserError


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


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
