"""export.json: what a folder exports, with the size and the checksum of each of its files; an export as one file."""

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
from chatbot.config.export import FORMATS, WEIGHTS
from chatbot.durable import read_json, write_json
from chatbot.errors import UserError

MANIFEST = EXPORT
# Increase this whenever the files of an export mean something else.
VERSION = 1
BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of export.json, apart from the files. Raises ValueError for a value that is not allowed."""

    format: str
    weights: str
    attempt: str
    step: int
    validated: bool  # whether validation chose the checkpoint, which decides the default search
    questions: list[str] = dataclasses.field(default_factory=list)  # that were learned; exports before these had none

    def __post_init__(self) -> None:
        types = {field.name: get_origin(field.type) or field.type for field in dataclasses.fields(self)}
        if not all(type(getattr(self, name)) is kind for name, kind in types.items()):
            raise ValueError("a value of another type")
        if self.format not in FORMATS or self.weights not in WEIGHTS:
            raise ValueError("an unknown format")
        if not all(isinstance(text, str) and text.isprintable() for text in (self.attempt, *self.questions)):
            raise ValueError("a text that a terminal would obey")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write export.json, with the sizes and checksums of all other files in the folder."""
    files = {
        path.relative_to(folder).as_posix(): _size_and_checksum(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    values = {"chatbot_export": VERSION, **dataclasses.asdict(manifest), "files": files}
    write_json(folder / MANIFEST, values)


def read_manifest(folder: Path) -> Manifest:
    """Return what a folder exports, after its files have been compared with their checksums.

    Raises UserError for a folder that is missing, is no export, or is damaged, and for an export of another version.
    """
    again = "export the attempt again with `python -m chatbot.export`"
    if not (folder / MANIFEST).is_file():
        what = "no such folder" if not folder.exists() else f"not an export, {MANIFEST} is not in it"
        raise UserError(f"{folder}: {what}; give a folder that `python -m chatbot.export` has written")
    try:
        values = read_json(folder / MANIFEST)
        version = values.pop("chatbot_export")
        files = values.pop("files")
        if version != VERSION:
            raise UserError(f"{folder}: of version {version}, not {VERSION}, of exports; {again}")
        manifest = Manifest(**values)
        for name, (size, checksum) in files.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != size or _size_and_checksum(path)[1] != checksum:
                raise UserError(f"{folder}: damaged, {name} is missing or changed; {again}")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f"{folder}: damaged, {MANIFEST} cannot be read; {again}") from None
    return manifest


def _size_and_checksum(path: Path) -> tuple[int, int]:
    size = checksum = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            size = size + len(block)
            checksum = zlib.crc32(block, checksum)
    return size, checksum


def is_export(path: Path) -> bool:
    """Return whether a folder or a zip has the manifest of an export."""
    if path.is_dir():
        return (path / MANIFEST).is_file()
    return zipfile.is_zipfile(path) and zipfile.Path(path, MANIFEST).exists()


def write_zip(folder: Path, file: Path) -> None:
    """Write all files of an export to one."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))


def folder_of(path: Path) -> Path:
    """Return the folder of an export; of one that is a zip, a temporary folder, which is removed when the process ends.

    Raises UserError for a file that is no export.
    """
    if not path.is_file():
        return path
    if not is_export(path):
        raise UserError(f"{path}: not an export; give a file that `{program('export')} --zip` has written")
    parent = tempfile.TemporaryDirectory(prefix="duida-")
    atexit.register(parent.cleanup)
    folder = Path(parent.name) / path.stem
    try:
        with zipfile.ZipFile(path) as archive:
            needed = sum(file.file_size for file in archive.infolist())
            free = shutil.disk_usage(parent.name).free
            if needed > free:
                sizes = f"{needed / 1e9:,.1f} GB unpacked, and {parent.name} has {free / 1e9:,.1f} GB free"
                raise UserError(f"{path}: {sizes}; free some, or set TMPDIR to a folder with more")
            archive.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise damaged(path, error) from None
    return folder


def damaged(folder: Path, error: Any) -> UserError:
    """Return the error about an export whose files are whole, but which its runtime does not read."""
    reason = str(error).strip().split("\n")[0][:150]
    return UserError(f"{folder}: cannot be read ({reason}); export the attempt again")
