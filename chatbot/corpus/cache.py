"""Cache folders, which are named by a hash of their inputs, created atomically, and verified before use.

The size of a cache is limited: after a new folder is created, the least recently used folders are removed. The
modification time of a folder's manifest is the time of its last use.
"""

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock
import xxhash

from chatbot.corpus.reading.sources import CACHE_TAG
from chatbot.errors import UserError

MANIFEST = "manifest.json"
# Content of the file CACHEDIR.TAG. Backup programs skip folders with this file (https://bford.info/cachedir/).
CACHE_TAG_CONTENT = "Signature: 8a477f597d28d172789f06886806bc55\n"
BLOCK = 1 << 20  # bytes per read
DAY = 86_400  # seconds
# Old folders are removed if the cache is larger than this, or if they are unused for this time. Folders that were used
# in the last day are always kept.
MAX_BYTES = 20 * 10**9
MAX_UNUSED_SECONDS = 90 * DAY
NAME = re.compile(r"[a-z]+-[0-9a-f]{32}")  # matches the name of a cache folder
PART = ".part-"  # marks the name of a folder that is being created or removed


def key_of(**parts: Any) -> str:
    """Return a hash of the keyword arguments, which must be JSON-serialisable."""
    text = json.dumps(parts, sort_keys=True)
    return xxhash.xxh3_128_hexdigest(text.encode())


def content_key(path: Path) -> str:
    """Return a hash of a file's content, independent of its name and date."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def make_once(folder: Path) -> Iterator[Path | None]:
    """Yield a temporary folder to fill, or None if `folder` is already complete.

        with make_once(root / name) as part:
            if part:
                write_files(part)

    After the block, a manifest with the checksum of each file is added, and the temporary folder replaces `folder`.
    After an exception, Ctrl-C or SIGTERM, the temporary folder is removed and `folder` is unchanged. Only one process
    creates the folder, while others wait. A damaged folder is replaced. If the cache exceeds its limits, old folders
    are removed.

    Raises:
        UserError: If the disk is full.
    """
    if is_complete(folder):
        note_use(folder)
        yield None
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder.parent)
        with _lock(folder):
            if is_complete(folder):  # another process has created the folder in the meantime
                yield None
            else:
                with temporary_folder(folder.parent, f"{folder.name}{PART}") as part:
                    # Write the tag first, so unfinished folders are not read as data.
                    (part / CACHE_TAG).write_text(CACHE_TAG_CONTENT, encoding="ascii")
                    yield part
                    files = {path.name: content_key(path) for path in sorted(part.iterdir())}
                    (part / MANIFEST).write_text(json.dumps({"files": files}), encoding="utf-8")
                    if folder.exists():
                        print(f"{folder}: damaged; created again")
                        shutil.rmtree(folder)
                    part.chmod(0o755)
                    os.replace(part, folder)
                _remove_unused(folder.parent)
    except OSError as error:
        if error.filename is not None:
            raise
        raise UserError(
            f"{folder.parent}: encoded pairs cannot be written ({error.strerror or error}); "
            "free some space, or choose another folder with --cache"
        ) from None


def is_complete(folder: Path) -> bool:
    """Return whether a folder has a manifest and all files match their checksums."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return all(content_key(folder / name) == checksum for name, checksum in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise an exception on Ctrl-C or SIGTERM inside the block, so temporary files are removed.

    Without this, both signals could end the process at once. A custom SIGTERM handler is not replaced.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signal handlers can be set only in the main thread
        return
    before: dict[int, Any] = {signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler)}
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def temporary_folder(parent: Path | None = None, prefix: str = "chatbot-corpus-") -> Iterator[Path]:
    """Yield an empty folder that is removed after the block, unless it was moved.

    Args:
        parent: Parent folder; the system's temporary folder if None.
        prefix: Prefix of the folder's name.
    """
    with interruptible(), tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def note_use(folder: Path) -> None:
    """Update the time of a folder's last use, which keeps the folder in the cache for at least a day."""
    with suppress(OSError):  # the folder can be read-only
        os.utime(folder / MANIFEST)


def _remove_unused(cache: Path) -> None:
    """Remove old folders until the cache is within its limits.

    Errors are ignored, because other processes can use the folders, and other users can own some of them.
    """
    folders: list[tuple[float, int, Path]] = []
    for folder in cache.iterdir():
        with suppress(OSError):
            if NAME.fullmatch(folder.name):
                size = sum(path.stat().st_size for path in folder.iterdir())
                folders.append(((folder / MANIFEST).stat().st_mtime, size, folder))
    total = sum(size for _, size, _ in folders)
    for last_use, size, folder in sorted(folders):
        unused = time.time() - last_use
        if unused <= (DAY if total > MAX_BYTES else MAX_UNUSED_SECONDS):
            break
        with suppress(OSError):
            removed = folder.with_name(f"{folder.name}{PART}removed")
            os.rename(folder, removed)
            shutil.rmtree(removed)
            total -= size
            print(f"{folder}: removed, not used for {unused / DAY:.0f} days")


def _remove_abandoned(cache: Path) -> None:
    """Remove the temporary folders of killed processes. A folder is in use only while it is locked.

    Errors are ignored, because other users can own some folders.
    """
    for part in cache.iterdir():
        name, is_part, _ = part.name.partition(PART)
        if is_part and NAME.fullmatch(name):
            with suppress(OSError), filelock.FileLock(cache / f".{name}.lock", timeout=0):
                shutil.rmtree(part)


def _lock(folder: Path) -> filelock.BaseFileLock:
    lock = filelock.FileLock(folder.with_name(f".{folder.name}.lock"))  # hidden, so it is not read as data
    try:
        lock.acquire(blocking=False)
        lock.release()
    except filelock.Timeout:
        print(f"Waiting for another process that is writing {folder} ...", flush=True)
    return lock
