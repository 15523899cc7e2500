"""Files that survive a power failure: the content is on the disk before the name of a file appears. JSON; sizes."""

import contextlib
import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Of a JSON file. Those of an attempt have a few kilobytes, more if thousands of data files are named.
MOST_BYTES = 64_000_000
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


def unused_name(path: Path) -> Path:
    """Return a path in the folder of a path, at which there is nothing. It is hidden, and short whatever the name."""
    return path.with_name(f".{secrets.token_hex(8)}.part")


def remove_unfinished(folder: Path) -> None:
    """Remove the files of a folder that killed processes were writing. Nobody may be writing there."""
    for path in folder.glob(".*.part"):
        if re.fullmatch(r"\.[0-9a-f]{16}\.part", path.name):
            path.unlink()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of an empty file, for the block to write. At its end, that file takes the place of the other one.

    At any time, the old file or the new one is complete. No other file is touched. The new one has the mode of the old
    one, and a symbolic link stays. After an exception, the old file is there, and no part of the new one.

    Raises OSError.
    """
    path = Path(os.path.realpath(path))
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    part = unused_name(path)
    try:
        # Nobody else may read what nobody else could read.
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600))
        yield part
        sync(part)
        if mode is not None:
            part.chmod(mode)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_file(path: Path, content: bytes) -> None:
    """Write a file, or replace it as `replacing` does."""
    with replacing(path) as part:
        part.write_bytes(content)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file as `write_file` does."""
    write_file(path, (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode())


def read_json(path: Path) -> Any:
    """Return the value in a JSON file, which may be damaged, or made by others.

    Raises OSError for a file that cannot be read, and ValueError for one that is not JSON or has more than MOST_BYTES.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder. Files that vanish meanwhile count as 0."""
    files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names] if path.is_dir() else [path]
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.lstat().st_size
    return total
