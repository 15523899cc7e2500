"""Files that survive a power failure: the content is on the disk before the name of the file appears."""

import errno
import json
import os
from pathlib import Path
from typing import Any

WINDOWS = os.name == "nt"


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    folder = path.is_dir()
    if folder and WINDOWS:
        return  # Windows cannot open a folder
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not folder or error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Write a file, or replace it. At any time, the old file or the new one is complete."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file as `write_file` does."""
    write_file(path, (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode())
