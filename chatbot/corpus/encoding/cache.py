"""Folders that are computed once: named by what they hold, whole or not there, checked before use."""

import json
import os
import shutil
import signal
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import xxhash

from chatbot.errors import UserError

MANIFEST = "manifest.json"
BLOCK = 1 << 20  # bytes read at once


def key_of(**parts: Any) -> str:
    """A name for content that was made from these parts, which JSON can hold."""
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True)
    return xxhash.xxh3_128_hexdigest(text.encode())


def content_key(path: Path) -> str:
    """A hash of what a file holds, whatever it is called and however old it is."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def cached(root: Path, name: str, build: Callable[[Path], dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
    """The folder root/name, and what `build` said of it; built when it is not there or damaged.

    build writes into the folder it is given, which takes its place under the name only when it is whole.
    Of several processes that want it at once, one builds and the others wait. Raises UserError when the
    disk does not take it; what was there before is left as it was.
    """
    target = root / name
    said = read_manifest(target)
    if said is not None:
        return target, said  # which needs no permission to write
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _only_here(root / f"{name}.lock"):
            said = read_manifest(target)  # another process may have built it meanwhile
            if said is None:
                with interruptible():
                    _build(target, build)
                said = read_manifest(target)
                assert said is not None, "a folder changed while it was written"
            return target, said
    except OSError as error:
        raise UserError(
            f"{root}: encoded pairs cannot be kept there ({error.strerror or error}); "
            "make room, or give another folder with --cache"
        ) from None


@contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C an exception, so that what was begun is removed; see `exit_code_of` for why it is none elsewhere."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _only_here(path: Path) -> filelock.BaseFileLock:
    lock = filelock.FileLock(path)
    try:
        lock.acquire(blocking=False)
        lock.release()
    except filelock.Timeout:
        print(f"Waiting for another process, which makes {path.with_suffix('')} ...", flush=True)
    return lock


def _build(target: Path, build: Callable[[Path], dict[str, Any]]) -> None:
    for abandoned in target.parent.glob(f"{target.name}.part-*"):
        shutil.rmtree(abandoned)  # by a process that was killed; the lock is ours
    part = Path(tempfile.mkdtemp(prefix=f"{target.name}.part-", dir=target.parent))
    try:
        said = build(part)
        files = {path.name: _sum(path) for path in sorted(part.iterdir())}
        (part / MANIFEST).write_text(json.dumps({"said": said, "files": files}, ensure_ascii=False), encoding="utf-8")
        if target.exists():
            print(f"{target}: damaged; made anew")
            shutil.rmtree(target)
        part.chmod(0o755)
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What was said of a folder when it was built; None when a file in it is not as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, list[int]] = manifest["files"]
        whole = all(_sum(folder / name) == was for name, was in files.items())
        return manifest["said"] if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _sum(path: Path) -> list[int]:
    """[bytes, CRC-32] of a file, read block by block."""
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]
