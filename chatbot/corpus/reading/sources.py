"""From the names that the user gives (files, globs, directories, none) to sources of pairs."""

import glob
import importlib.resources
import os
import stat
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chatbot.corpus.reading.display import one_line
from chatbot.errors import UserError

CORNELL_FILES = ("movie_lines.txt", "movie_conversations.txt")


@dataclass(frozen=True)
class Source:
    """Files that are read together: a single file, two parallel files, the Cornell corpus or the built-in corpus."""

    name: str  # for messages
    paths: tuple[Path, ...]
    kind: str  # "file", "parallel", "cornell" or "chatterbot"


def find_sources(files: Sequence[str], source_file: str | None = None, target_file: str | None = None) -> list[Source]:
    """Return the sources of these names in order, each file once; the files of a glob are sorted.

    Without any name, returns the built-in ChatterBot corpus. Raises UserError for a file that is missing or unreadable,
    a directory that is not Cornell's, a glob without a match, and one parallel file without the other.
    """
    if (source_file is None) != (target_file is None):
        raise UserError("parallel files come in pairs: give both --source-file and --target-file")
    sources = [_source_of(path) for name in files for path in _expanded(name)]
    if source_file is not None and target_file is not None:
        paths = (_readable(Path(source_file)), _readable(Path(target_file)))
        sources.append(Source(one_line(f"{source_file} + {target_file}"), paths, "parallel"))
    distinct: dict[tuple[Path, ...], Source] = {}
    for source in sources:
        distinct.setdefault(tuple(path.resolve() for path in source.paths), source)
    return list(distinct.values()) or [_chatterbot()]


def _expanded(name: str) -> list[Path]:
    if os.path.lexists(name) or not glob.has_magic(name):
        return [Path(name)]
    paths = [Path(match) for match in sorted(glob.glob(name, recursive=True))]
    files = [path for path in paths if path.is_file()]
    if not files:
        raise UserError(f"{one_line(name)}: no file matches; check the pattern")
    return files


def _source_of(path: Path) -> Source:
    name = one_line(str(path))
    if os.path.isdir(path):  # unlike path.is_dir(), accepts any name
        pair = tuple(path / file for file in CORNELL_FILES)
        if not all(file.is_file() for file in pair):
            raise UserError(f"{name}: a directory; give a file or a glob in it, such as {name}/*.tsv")
        return Source(name, tuple(map(_readable, pair)), "cornell")
    _readable(path)
    if path.name in CORNELL_FILES:
        return Source(name, tuple(_readable(path.with_name(file)) for file in CORNELL_FILES), "cornell")
    return Source(name, (path,), "cornell" if _is_cornell_zip(path) else "file")


def _readable(path: Path) -> Path:
    name = one_line(str(path))
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        hint = "; the Cornell corpus needs both of its files" if path.name in CORNELL_FILES else ""
        raise UserError(f"{name}: no such file; check the path{hint}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        raise UserError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not stat.S_ISREG(mode):  # a device never ends, and a pipe can be read only once
        raise UserError(f"{name}: not a regular file; give a file of pairs")
    if not os.access(path, os.R_OK):
        raise UserError(f"{name}: no permission to read it; run chmod u+r, or ask its owner")
    return path


def _is_cornell_zip(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {Path(member).name for member in archive.namelist() if not member.startswith("__MACOSX")}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False  # not a zip file, or a damaged one, which the reader reports
    return members.issuperset(CORNELL_FILES)


def _chatterbot() -> Source:
    folder = importlib.resources.files("chatterbot_corpus") / "data" / "chinese"
    paths = tuple(Path(str(entry)) for entry in sorted(folder.iterdir(), key=lambda entry: entry.name))
    return Source("the built-in ChatterBot corpus", paths, "chatterbot")
