"""What a file or a folder contains: the files of a folder, the members of an archive, the parts of a JSON object."""

import functools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.files.file_names import (
    CACHE_TAG,
    TEST,
    TRAINING,
    VALIDATION,
    WORDS,
    is_hidden,
    is_no_data,
    part_of,
)
from chatbot.corpus.reading.files.json_parts import part_keys
from chatbot.corpus.reading.files.text_file import open_files
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

CORNELL_FILES = ("movie_lines.txt", "movie_conversations.txt")
MAX_FILES = 10_000  # of a folder
LARGE = 8 * 2**20  # bytes


@dataclass(frozen=True)
class Source:
    """Files that are read together: one or more files, two parallel files, the Cornell corpus or the built-in one."""

    name: str  # for messages
    paths: tuple[Path, ...]
    kind: str  # "file", "parallel", "cornell" or "chatterbot"
    members: tuple[str, ...] = ()  # of an archive, those to read, () for all; of "cornell", one for each path
    part: str | None = None  # of a JSON object, the part whose keys are read; None for all keys

    @property
    def deciding_names(self) -> list[str]:
        """What the names of the files decide about their reading.

        Of several files, as in a folder, the names below their common folder, which also say what is no data; of one
        file its endings, since the user gave it.
        """
        if self.kind != "file":
            return []
        if len(self.paths) == 1:
            return ["".join(self.paths[0].suffixes).casefold()]
        common = os.path.commonpath([path.parent for path in self.paths])
        return [path.relative_to(common).as_posix() for path in self.paths]


@dataclass(frozen=True)
class Container:
    """A file or a folder, and what it contains: files, members of an archive, parts of a JSON object."""

    label: str  # its path in the container around it, which may name a part
    whole: list[Source]  # all of it
    content: list["Container"] = field(default_factory=list)

    def divided(self) -> dict[str, list[Source]] | None:
        """Return the sources of each part, None if there is no training part.

        The names of the content decide, if one of them names a training part; content without such a name then belongs
        to training. Content may itself be divided.
        """
        labels = [part_of(inner.label) for inner in self.content]
        if TRAINING not in labels:
            labels = [None] * len(labels)
        inside = [None if label else inner.divided() for inner, label in zip(self.content, labels, strict=True)]
        if not any(labels) and not any(inside):
            return None
        parts: dict[str, list[Source]] = {TRAINING: [], VALIDATION: [], TEST: []}
        for inner, label, found in zip(self.content, labels, inside, strict=True):
            for part, sources in (found or {label or TRAINING: inner.whole}).items():
                parts[part] += sources
        return {part: merged(sources) for part, sources in parts.items()}


def merged(sources: Iterable[Source]) -> list[Source]:
    """Return the sources with those of one folder as one, and those of one archive as one."""
    result: list[Source] = []
    for source in sources:
        last = result[-1] if result else None
        if last is None or (last.name, last.kind, last.part) != (source.name, "file", None) or source.part:
            result.append(source)
        elif last.paths == source.paths:
            result[-1] = replace(last, members=last.members + source.members)
        elif not last.members and not source.members:
            result[-1] = replace(last, paths=last.paths + source.paths)
        else:
            result.append(source)
    return result


def folder_container(path: Path) -> Container:
    """Return the files of a folder and of the folders below it, sorted, without hidden ones and caches.

    Raises UserError for a folder without files, or with more than MAX_FILES.
    """
    name = one_line(str(path))
    files = sorted(_files_below(path))
    if all(map(is_no_data, files)):
        raise UserError(f"{name}: a directory without files of pairs; give a file")
    if len(files) > MAX_FILES:
        raise UserError(f"{name}: a directory of more than {MAX_FILES:,} files; give a glob, such as {name}/*.tsv")
    content = []
    if cornell := cornell_pair(files):
        paths = tuple(path / file for file in cornell)
        content.append(Container(str(PurePosixPath(cornell[0]).parent), [Source(name, paths, "cornell")]))
    for file in _beside_cornell(files, cornell):
        inner = file_container(path / file)
        whole = [replace(source, name=name) for source in inner.whole]
        content.append(Container(file, whole, inner.content))
    whole = merged(source for inner in content for source in inner.whole)
    if len(files) == 1:
        whole = [replace(source, name=one_line(str(path / files[0]))) for source in whole]
    return Container("", whole, content)


def _files_below(path: Path) -> Iterator[str]:
    count = 0
    for folder, folders, files in os.walk(path):
        if CACHE_TAG in files:
            folders[:] = []
            continue
        folders[:] = sorted(inner for inner in folders if not is_hidden(inner)) if count <= MAX_FILES else []
        for file in files:
            if not is_hidden(file) and os.path.isfile(os.path.join(folder, file)):
                count += 1
                yield Path(folder, file).relative_to(path).as_posix()


def file_container(path: Path) -> Container:
    """Return the content of a file. A damaged archive has none; its reader reports the damage."""
    source = Source(one_line(str(path)), (path,), "file")
    found = _scanned(path)
    if found and not found[0][0]:
        return Container(path.name, [source], _of_keys(source, found[0][1]))
    if not found:
        return Container(path.name, [source])
    keys = dict(found)
    content = []
    if cornell := cornell_pair(keys):
        pair = replace(source, paths=(path, path), kind="cornell", members=cornell)
        content.append(Container(str(PurePosixPath(cornell[0]).parent), [pair]))
    for member in _beside_cornell(list(keys), cornell):
        inner = replace(source, members=(member,))
        content.append(Container(member, [inner], _of_keys(inner, keys[member])))
    whole = merged(source for inner in content for source in inner.whole) if cornell else [source]
    return Container(path.name, whole, content)


def _scanned(path: Path) -> list[tuple[str, list[str]]]:
    """Return (name in the archive, part keys of a JSON object) of each file in a file, [] for one that is damaged."""
    try:
        status = path.stat()
        scan = _scan_once if status.st_size >= LARGE else _scan
        return scan(path, status.st_mtime_ns)
    except (UserError, OSError):
        return []


def _scan(path: Path, modified: int) -> list[tuple[str, list[str]]]:
    return [(file.member, part_keys(file.stream)) for file in open_files(path, one_line(str(path)), Report())]


_scan_once = functools.lru_cache(maxsize=64)(_scan)  # several commands ask for the same, and a .tar.gz takes seconds


def _of_keys(source: Source, keys: Iterable[str]) -> list[Container]:
    """Return the parts of a JSON object. Keys that name no part are read with its training part."""
    names = {WORDS[key.casefold()]: key for key in keys}
    return [Container(key, [replace(source, part=part)]) for part, key in names.items()]


def cornell_pair(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the two files of the Cornell corpus, in the first folder that has both; () if none has."""
    files = set(names)
    for name in sorted(files):
        if name.endswith(CORNELL_FILES[0]):
            pair = tuple(name.removesuffix(CORNELL_FILES[0]) + file for file in CORNELL_FILES)
            if files.issuperset(pair):
                return pair
    return ()


def _beside_cornell(files: list[str], cornell: tuple[str, ...]) -> list[str]:
    """Return the files to read; beside the Cornell corpus, neither a second copy of it nor its documentation."""
    if not cornell:
        return files
    return [file for file in files if PurePosixPath(file).name not in CORNELL_FILES and not is_no_data(file)]
