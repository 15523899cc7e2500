"""Reads and writes export.json, which contains the checksums of an export's files, and zip files of exports."""

import atexit
import dataclasses
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any, get_origin

from chatbot.attempts.files import EXPORT
from chatbot.commands import program
from chatbot.config.export import FORMATS, WEIGHTS, ZIP
from chatbot.durable import read_json, write_json
from chatbot.errors import UserError

MANIFEST = EXPORT
# Increase this number when the format of exports changes.
VERSION = 1
BLOCK = 1 << 20  # bytes read at once


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of export.json except the checksums. Raises ValueError if a value is invalid."""

    format: str
    weights: str
    attempt: str
    step: int
    validated: bool  # whether validation chose the checkpoint; this determines the default search
    questions: list[str] = dataclasses.field(default_factory=list)  # example questions; missing in old exports

    def __post_init__(self) -> None:
        types = {field.name: get_origin(field.type) or field.type for field in dataclasses.fields(self)}
        if not all(type(getattr(self, name)) is kind for name, kind in types.items()):
            raise ValueError("a value has the wrong type")
        if self.format not in FORMATS or self.weights not in WEIGHTS:
            raise ValueError("the format is unknown")
        if not all(isinstance(text, str) and text.isprintable() for text in (self.attempt, *self.questions)):
            raise ValueError("a text contains control characters")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write export.json with the sizes and checksums of all other files in the folder."""
    files = {
        path.relative_to(folder).as_posix(): (path.stat().st_size, _checksum(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    values = {"chatbot_export": VERSION, **dataclasses.asdict(manifest), "files": files}
    write_json(folder / MANIFEST, values)


def read_manifest(folder: Path) -> Manifest:
    """Read export.json and verify the checksums of all files.

    Raises:
        UserError: The folder is missing or damaged, is not an export, or has a different version.
    """
    remedy = "export the attempt again with `python -m chatbot.export`"
    if not (folder / MANIFEST).is_file():
        reason = f"not an export, because it has no {MANIFEST}" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {reason}; give a folder written by `python -m chatbot.export`")
    try:
        values = read_json(folder / MANIFEST)
        version = values.pop("chatbot_export")
        files = values.pop("files")
        if version != VERSION:
            raise UserError(f"{folder}: an export of version {version}, expected {VERSION}; {remedy}")
        manifest = Manifest(**values)
        for name, (size, checksum) in files.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != size or _checksum(path) != checksum:
                raise UserError(f"{folder}: damaged, {name} is missing or changed; {remedy}")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f"{folder}: damaged, {MANIFEST} cannot be read; {remedy}") from None
    return manifest


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum


def is_export(path: Path) -> bool:
    """Return whether a folder or zip file contains an export."""
    if path.is_dir():
        return (path / MANIFEST).is_file()
    return zipfile.is_zipfile(path) and zipfile.Path(path, MANIFEST).exists()


def write_zip(folder: Path, file: Path) -> None:
    """Compress an export into a zip file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))


def open_export(path: Path) -> Path:
    """Return the folder of an export. A zip file is unpacked to a temporary folder that is removed at exit.

    Raises:
        UserError: The file is not an export, or the disk has too little free space.
    """
    if not path.is_file():
        if path.suffix == ZIP and not path.exists():
            raise UserError(f"{path}: no such file; give a file written by `{program('export')} --zip`")
        return path
    if not is_export(path):
        raise UserError(f"{path}: not an export; give a file written by `{program('export')} --zip`")
    temporary = tempfile.TemporaryDirectory(prefix="duida-")
    atexit.register(temporary.cleanup)
    folder = Path(temporary.name) / path.stem
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked_size = sum(file.file_size for file in archive.infolist())
            free = shutil.disk_usage(temporary.name).free
            if unpacked_size > free:
                sizes = f"{unpacked_size / 1e9:,.1f} GB unpacked, and {temporary.name} has {free / 1e9:,.1f} GB free"
                raise UserError(f"{path}: {sizes}; free some space, or set TMPDIR to a folder with more")
            archive.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise unreadable_export(path, error) from None
    return folder


def unreadable_export(folder: Path, error: Any) -> UserError:
    """Create the error for an export that contains the right files but cannot be loaded."""
    reason = str(error).strip().split("\n")[0][:150]
    return UserError(f"{folder}: cannot be read ({reason}); export the attempt again")
