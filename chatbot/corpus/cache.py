"""Folders that are computed once: named by a hash of their inputs, complete or absent, verified before use.

A cache is bounded. Folders that were not used for long are removed when another one has been made, the least recently
used first, but none that a live process uses: it holds a shared lock of the manifest.
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

from chatbot.corpus.reading.open.file_kinds import CACHE_TAG
from chatbot.errors import UserError

fcntl: Any
try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None

MANIFEST = "manifest.json"
# Marks a folder as a cache, for backup programs and for `--data FOLDER` (https://bford.info/cachedir/).
CACHE_TAG_CONTENT = "Signature: 8a477f597d28d172789f06886806bc55\n"
BLOCK = 1 << 20  # bytes read at once
# The limits of a cache: bytes in all folders, and seconds since the last use of each.
MOST_BYTES, MOST_SECONDS = 20 * 10**9, 90 * 86_400
NAME = re.compile(r"[a-z]+-[0-9a-f]{32}")  # of a folder with a key
HELD = 64  # folders that a process keeps for its use; an attempt needs four

_held: dict[Path, int] = {}  # the descriptors of the locked manifests, the latest last


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
    permission. Other folders beyond the limits are removed, and `folder` is in use until this process ends.
    Raises UserError if the files cannot be written, or if the block cannot read another file.
    """
    if _is_usable(folder):
        yield None
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            if _is_usable(folder):  # made by another process in the meantime
                yield None
            else:
                with interruptible(), _temporary(folder) as part:
                    yield part
                    (part / CACHE_TAG).write_text(CACHE_TAG_CONTENT, encoding="ascii")
                    files = {path.name: content_key(path) for path in sorted(part.iterdir())}
                    (part / MANIFEST).write_text(json.dumps({"files": files}), encoding="utf-8")
                    _replace(folder, part)
                    _hold(folder)
                _remove_unused(folder.parent)
    except OSError as error:
        reason = error.strerror or error
        if isinstance(error.filename, str) and not _is_related(Path(error.filename), folder.parent):
            raise UserError(
                f"{error.filename}: cannot be read ({reason}); check that the file is still there"
            ) from None
        raise UserError(
            f"{folder.parent}: encoded pairs cannot be written ({reason}); "
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
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder that is removed at the end. parent: None: the system's folder for temporary files."""
    with interruptible(), tempfile.TemporaryDirectory(prefix="chatbot-corpus-", dir=parent) as folder:
        yield Path(folder)


@contextmanager
def _locked_by_nobody(path: Path) -> Iterator[None]:
    """Lock a file of this user. Raises OSError if it is absent, another user's, or locked by a process.

    Also on Windows, where nothing can be locked so: no folder is removed.
    """
    if fcntl is None:
        raise OSError
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _is_usable(folder: Path) -> bool:
    """Return whether the folder is complete, and if so, keep it for this process."""
    _hold(folder)
    if is_complete(folder):
        with suppress(OSError):  # no permission to write
            os.utime(folder / MANIFEST)  # the time of its last use
        return True
    _release(folder)
    return False


def _hold(folder: Path) -> None:
    """Lock the manifest, if there is one, so that no process removes the folder before this process ends."""
    _release(folder)
    if fcntl is None:
        return
    with suppress(OSError):  # absent, or a file system without locks
        descriptor = os.open(folder / MANIFEST, os.O_RDONLY)
        _held[folder] = descriptor
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    while len(_held) > HELD:
        _release(next(iter(_held)))


def _release(folder: Path) -> None:
    if (descriptor := _held.pop(folder, None)) is not None:
        os.close(descriptor)


def _remove_unused(cache: Path) -> None:
    """Remove the folders that were not used for MOST_SECONDS, and the least recently used ones beyond MOST_BYTES."""
    used: list[tuple[float, int, Path]] = []
    for folder in cache.iterdir():
        with suppress(OSError):  # another process removes it
            if NAME.fullmatch(folder.name):
                size = sum(path.stat().st_size for path in folder.iterdir())
                used.append(((folder / MANIFEST).stat().st_mtime, size, folder))
    total = sum(size for _, size, _ in used)
    for last, size, folder in sorted(used):
        if total <= MOST_BYTES and time.time() - last <= MOST_SECONDS:
            break
        with suppress(OSError), _locked_by_nobody(folder / MANIFEST):
            removed = folder.with_name(f"{folder.name}.part-removed")
            os.rename(folder, removed)
            shutil.rmtree(removed)
            total -= size
            print(f"{folder}: removed, not used for {(time.time() - last) / 86_400:.0f} days")


def _is_related(path: Path, folder: Path) -> bool:
    """Return whether one of the two is in the other, or is the other."""
    path, folder = path.absolute(), folder.absolute()
    return path.is_relative_to(folder) or folder.is_relative_to(path)


def _lock(folder: Path) -> filelock.BaseFileLock:
    lock = filelock.FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(blocking=False)
        lock.release()
    except filelock.Timeout:
        print(f"Waiting for another process that is writing {folder} ...", flush=True)
    return lock


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside `folder`, removed at the end unless it was moved. The caller holds the lock."""
    for abandoned in folder.parent.glob(f"{folder.name}.part-*"):  # by processes that were killed
        shutil.rmtree(abandoned)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _replace(folder: Path, part: Path) -> None:
    if folder.exists():
        print(f"{folder}: damaged; made again")
        shutil.rmtree(folder)
    part.chmod(0o755)
    os.replace(part, folder)
