"""Folders that are computed once: named by a hash of their inputs, complete or absent, verified before use."""

import json
import os
import shutil
import signal
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import xxhash

from chatbot.corpus.reading.files.file_names import CACHE_TAG
from chatbot.errors import UserError

MANIFEST = "manifest.json"
# Marks a folder as a cache, for backup programs and for `--data FOLDER` (https://bford.info/cachedir/).
CACHE_TAG_CONTENT = "Signature: 8a477f597d28d172789f06886806bc55\n"
BLOCK = 1 << 20  # bytes read at once


def key_of(**parts: Any) -> str:
    """Return a hash of these parts, which must be serialisable as JSON."""
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True)
    return xxhash.xxh3_128_hexdigest(text.encode())


def content_key(path: Path) -> str:
    """Return a hash of a file's content; its name and date do not matter."""
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
    replaces `folder`; after an exception or Ctrl-C the temporary folder is removed, and `folder` is unchanged. One
    process makes the folder while others wait. A damaged folder is replaced. A complete folder needs no write
    permission.
    Raises UserError if the files cannot be written.
    """
    if is_complete(folder):
        yield None
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            if is_complete(folder):  # made by another process in the meantime
                yield None
            else:
                with interruptible(), _temporary(folder) as part:
                    yield part
                    (part / CACHE_TAG).write_text(CACHE_TAG_CONTENT, encoding="ascii")
                    _write_manifest(part)
                    _replace(folder, part)
    except OSError as error:
        raise UserError(
            f"{folder.parent}: encoded pairs cannot be written ({error.strerror or error}); "
            "free some space, or choose another folder with --cache"
        ) from None


def is_complete(folder: Path) -> bool:
    """Return whether the folder has a manifest, and every file has its checksum."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, list[int]] = manifest["files"]
        return all(_checksum(folder / name) == checksum for name, checksum in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt, so that temporary files are removed; see `exit_code_of` for the default."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python allows handlers in the main thread only
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
    for abandoned in folder.parent.glob(f"{folder.name}.part-*"):
        shutil.rmtree(abandoned)  # left by a process that was killed
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_manifest(folder: Path) -> None:
    files = {path.name: _checksum(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps({"files": files}), encoding="utf-8")


def _replace(folder: Path, part: Path) -> None:
    if folder.exists():
        print(f"{folder}: damaged; made again")
        shutil.rmtree(folder)
    part.chmod(0o755)
    os.replace(part, folder)


def _checksum(path: Path) -> list[int]:
    """[bytes, CRC-32] of a file, read block by block."""
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]
