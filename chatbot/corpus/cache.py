"""Folders that are computed once: named by a hash of their inputs, complete or absent, verified before use.

A cache is bounded. Folders that were not used for long are removed when another one has been made, the least recently
used first, and what killed processes left before it is made. The date of a manifest is the time of the last use of its
folder, as `note_use` sets it.
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
# Marks a folder as a cache, for backup programs and for `--data FOLDER` (https://bford.info/cachedir/).
CACHE_TAG_CONTENT = "Signature: 8a477f597d28d172789f06886806bc55\n"
BLOCK = 1 << 20  # bytes read at once
DAY = 86_400  # seconds
# The limits of a cache: bytes in all folders, and seconds since the last use of each. What was used within a day stays.
MOST_BYTES = 20 * 10**9
MOST_SECONDS = 90 * DAY
NAME = re.compile(r"[a-z]+-[0-9a-f]{32}")  # of a folder with a key
PART = ".part-"  # after the name of a folder that is being made or removed


def key_of(**parts: Any) -> str:
    """Return a hash of these parts, which must be serialisable as JSON."""
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True)
    return xxhash.xxh3_128_hexdigest(text.encode())


def content_key(path: Path) -> str:
    """Return a hash of a file's content, read block by block; its name and date do not matter."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def make_once(folder: Path) -> Iterator[Path | None]:
    """Yield a temporary folder for the files of `folder`, or None if `folder` is already complete.

        with make_once(root / name) as part:
            if part:
                write_files(part)

    At the end of the block the temporary folder gets a tag and a manifest with the checksum of each file, and
    replaces `folder`; after an exception, Ctrl-C or SIGTERM the temporary folder is removed, and `folder` is unchanged.
    One process makes the folder while others wait. A damaged folder is replaced. A complete folder needs no write
    permission. Other folders beyond the limits are removed. Raises UserError if the disk is full.
    """
    if is_complete(folder):
        note_use(folder)
        yield None
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder.parent)
        with _lock(folder):
            if is_complete(folder):  # made by another process in the meantime
                yield None
            else:
                with temporary_folder(folder.parent, f"{folder.name}{PART}") as part:
                    # The tag comes first: `--data FOLDER` skips an unfinished folder, too.
                    (part / CACHE_TAG).write_text(CACHE_TAG_CONTENT, encoding="ascii")
                    yield part
                    files = {path.name: content_key(path) for path in sorted(part.iterdir())}
                    (part / MANIFEST).write_text(json.dumps({"files": files}), encoding="utf-8")
                    if folder.exists():
                        print(f"{folder}: damaged; made again")
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
    """Return whether the folder has a manifest, and every file has its checksum."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return all(content_key(folder / name) == checksum for name, checksum in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM raise exceptions, so that temporary files are removed.

    The default for Ctrl-C: see `exit_code_of`. SIGTERM keeps a handler that was installed for it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python allows handlers in the main thread only
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
    """Yield an empty folder that is removed at the end, unless it was moved.

    parent: None: the system's folder for temporary files.
    """
    with interruptible(), tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def note_use(folder: Path) -> None:
    """Note that a complete folder is used now, so that it is not removed within a day."""
    with suppress(OSError):  # no permission to write
        os.utime(folder / MANIFEST)


def _remove_unused(cache: Path) -> None:
    """Remove the folders that were not used for MOST_SECONDS, and the least recently used ones beyond MOST_BYTES.

    Raises no error: another process may remove or use the same ones, and some may be another user's.
    """
    used: list[tuple[float, int, Path]] = []
    for folder in cache.iterdir():
        with suppress(OSError):
            if NAME.fullmatch(folder.name):
                size = sum(path.stat().st_size for path in folder.iterdir())
                used.append(((folder / MANIFEST).stat().st_mtime, size, folder))
    total = sum(size for _, size, _ in used)
    for last, size, folder in sorted(used):
        unused = time.time() - last
        if unused <= (DAY if total > MOST_BYTES else MOST_SECONDS):
            break
        with suppress(OSError):
            removed = folder.with_name(f"{folder.name}{PART}removed")
            os.rename(folder, removed)
            shutil.rmtree(removed)
            total -= size
            print(f"{folder}: removed, not used for {unused / DAY:.0f} days")


def _remove_abandoned(cache: Path) -> None:
    """Remove the temporary folders of processes that were killed: of folders that no process has locked.

    Raises no error: some may be another user's.
    """
    for part in cache.iterdir():
        name, is_part, _ = part.name.partition(PART)
        if is_part and NAME.fullmatch(name):
            with suppress(OSError), filelock.FileLock(cache / f".{name}.lock", timeout=0):
                shutil.rmtree(part)


def _lock(folder: Path) -> filelock.BaseFileLock:
    lock = filelock.FileLock(folder.with_name(f".{folder.name}.lock"))  # hidden, so that nobody reads it as pairs
    try:
        lock.acquire(blocking=False)
        lock.release()
    except filelock.Timeout:
        print(f"Waiting for another process that is writing {folder} ...", flush=True)
    return lock
