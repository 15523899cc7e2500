"""Functions that write files atomically, even if the power fails, and read JSON files."""

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

# Maximum size of a JSON file in bytes. A config.json can be large, because it can list thousands of data files.
MAX_BYTES = 64_000_000
WINDOWS = os.name == "nt"


def sync(path: Path) -> None:
    """Wait until the content of a file, or the list of files in a folder, is written to the disk."""
    folder = path.is_dir()
    if folder and WINDOWS:
        return  # on Windows, folders cannot be opened
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not folder or error.errno != errno.EINVAL:  # some network file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)


def unused_name(path: Path) -> Path:
    """Return the path for a new file in the same folder. Its name is short and hidden."""
    return path.with_name(f".{secrets.token_hex(8)}.part")


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files of killed processes from a folder. No other process may be writing to the folder."""
    for path in folder.glob(".*.part"):
        if re.fullmatch(r"\.[0-9a-f]{16}\.part", path.name):
            path.unlink()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of an empty temporary file. After the block, this file replaces the file at `path`.

    At any time, `path` is either the complete old file or the complete new file. Its permissions are preserved, and
    symbolic links are followed. After an exception, the old file is unchanged and the temporary file is removed.

    Raises:
        OSError: If the file cannot be written.
    """
    path = Path(os.path.realpath(path))
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    part = unused_name(path)
    try:
        # The temporary file must not be readable by users who cannot read the old file.
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
    """Write or replace a file atomically; see `replacing`."""
    with replacing(path) as part:
        part.write_bytes(content)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write or replace a JSON file atomically; see `replacing`."""
    write_file(path, (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode())


def read_json(path: Path) -> Any:
    """Return the value in a JSON file, even from an untrusted source.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the file is not JSON, or larger than MAX_BYTES.
    """
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES:,} bytes")
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def size_of(path: Path) -> int:
    """Return the size in bytes of a file, or of all files in a folder. Files that disappear are ignored."""
    files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names] if path.is_dir() else [path]
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.lstat().st_size
    return total
