"""From the names that the user gives (files, globs, folders, none) to sources of pairs, and to their parts."""

import functools
import glob
import importlib.resources
import io
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.open.file_kinds import (
    CACHE_TAG,
    TEST,
    TRAINING,
    VALIDATION,
    WORDS,
    is_hidden,
    is_no_data,
    part_of,
)
from chatbot.corpus.reading.open.text_file import open_files
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

SCALAR = rb'(?:"(?:[^"\\]|\\.)*"|[-+.\w]+)'
KEY = rb'"((?:[^"\\]|\\.)*)"\s*:\s*'
# The first key whose value is a list or an object, after others such as a version.
FIRST = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*\{\s*(?:" + KEY.replace(b"((", b"(?:(") + SCALAR + rb"\s*,\s*)*" + KEY + rb"[\[{]"
)
# A key after the end of a list or an object; within a text its quotes would be escaped.
NEXT = re.compile(rb"[\]}]\s*,\s*" + KEY + rb"[\[{]")
HEAD, BLOCK, OVERLAP = 4096, 2**20, 256


def part_keys(stream: io.BufferedReader) -> list[str]:
    """Return the keys of a JSON object that name parts of a corpus, [] if it begins with no such key.

    Reads the whole stream, though only if its first key names a part.
    """
    first = FIRST.match(stream.peek()[:HEAD])
    if first is None or _word(first[1]) is None:
        return []
    keys = [first[1].decode()]
    rest = b""
    while block := stream.read(BLOCK):
        text = rest + block
        if b'":' in text or b'" :' in text:  # in lists of lists, no key is left
            keys += [match[1].decode() for match in NEXT.finditer(text) if _word(match[1])]
        rest = text[-OVERLAP:]
    return list(dict.fromkeys(keys))


def part_of_object(value: object, part: str | None) -> object:
    """Return the lists and objects of one part. Keys that name no part belong to training."""
    if part is None or not isinstance(value, dict):
        return value
    return {key: item for key, item in value.items() if isinstance(item, list | dict) and part_of_key(key) == part}


def part_of_key(key: object) -> str:
    """Return the part that a key of an object belongs to."""
    return WORDS.get(str(key).casefold(), TRAINING)


def _word(key: bytes) -> str | None:
    return WORDS.get(key.decode("ascii", "replace").casefold())


CORNELL_FILES = ("movie_lines.txt", "movie_conversations.txt")
MAX_FILES = 10_000  # of a folder


@dataclass(frozen=True)
class Source:
    """Files that are read together: one or more files, two parallel files, the Cornell corpus or the built-in one."""

    name: str  # for messages
    paths: tuple[Path, ...]
    kind: str  # "file", "parallel", "cornell" or "chatterbot"
    members: tuple[str, ...] = ()  # of an archive, those to read, () for all
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
    members = ((member, keys, replace(source, members=(member,))) for member, keys in found)
    content = [Container(member, [inner], _of_keys(inner, keys)) for member, keys, inner in members]
    return Container(path.name, [source], content)


def _scanned(path: Path) -> list[tuple[str, list[str]]]:
    """Return (name in the archive, part keys of a JSON object) of each file in a file, [] for one that is damaged."""
    try:
        return _scan(path, path.stat().st_mtime_ns, path.stat().st_size)
    except (UserError, OSError):
        return []


@functools.lru_cache(maxsize=64)  # several commands ask for the same, and a .tar.gz takes seconds
def _scan(path: Path, modified: int, size: int) -> list[tuple[str, list[str]]]:
    return [(file.member, part_keys(file.stream)) for file in open_files(path, one_line(str(path)), Report())]


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


@dataclass(frozen=True)
class Parts:
    """The sources of a corpus, by their use."""

    training: list[Source]
    validation: list[Source]  # empty if no part is meant for validation
    test: list[Source]

    @property
    def left_out(self) -> list[str]:
        """The names of the test parts, which neither training nor validation reads."""
        return [source.name for source in self.test]

    @property
    def measured(self) -> list[Source]:
        """The sources that an evaluation reads: the test parts, without them the validation parts, without both all."""
        return self.test or self.validation or self.training


def find_sources(files: Sequence[str], source_file: str | None = None, target_file: str | None = None) -> list[Source]:
    """Return the sources of these names in order, each file once; the files of a glob or a folder are sorted.

    Without any name, returns the built-in ChatterBot corpus. Raises UserError for a file that is missing or unreadable,
    a folder without files, a glob without a match, and one parallel file without the other.
    """
    containers = [_container(path) for name in files for path in _expanded(name)]
    sources = [source for container in containers for source in container.whole]
    return _distinct([*sources, *_parallel(source_file, target_file)]) or [_chatterbot()]


def find_parts(files: Sequence[str], source_file: str | None = None, target_file: str | None = None) -> Parts:
    """Return the sources of these names, divided into parts.

    A folder, an archive or a JSON object that has a training part is divided by the names in it (`part_of`). All other
    files belong to training, whatever their names, since the user gave them. Raises UserError as `find_sources` does.
    """
    parts: dict[str, list[Source]] = {TRAINING: [], VALIDATION: [], TEST: []}
    for name in files:
        for path in _expanded(name):
            container = _container(path)
            divided = container.divided()
            for part, sources in (divided or {TRAINING: container.whole}).items():
                parts[part] += [_named_for(part, source) for source in sources] if divided else sources
    training = _distinct([*parts[TRAINING], *_parallel(source_file, target_file)]) or [_chatterbot()]
    return Parts(training, _distinct(parts[VALIDATION]), _distinct(parts[TEST]))


def _named_for(part: str, source: Source) -> Source:
    """Name a part of a container: by its file if it is one whole file, else by the container and the part."""
    if len(source.paths) == 1 and not source.members and not source.part:
        return replace(source, name=one_line(str(source.paths[0])))
    return replace(source, name=f"{source.name} ({part} part)")


def _parallel(source_file: str | None, target_file: str | None) -> list[Source]:
    if (source_file is None) != (target_file is None):
        raise UserError("parallel files come in pairs: give both --source-file and --target-file")
    if source_file is None or target_file is None:
        return []
    paths = (_readable(Path(source_file)), _readable(Path(target_file)))
    return [Source(one_line(f"{source_file} + {target_file}"), paths, "parallel")]


def _distinct(sources: Iterable[Source]) -> list[Source]:
    distinct: dict[object, Source] = {}
    for source in sources:
        paths = tuple(path.resolve() for path in source.paths)
        distinct.setdefault((paths, source.members, source.part), source)
    return list(distinct.values())


def _expanded(name: str) -> list[Path]:
    if os.path.lexists(name) or not glob.has_magic(name):
        return [Path(name)]
    paths = [Path(match) for match in sorted(glob.glob(name, recursive=True))]
    files = [path for path in paths if path.is_file()]
    if not files:
        raise UserError(f"{one_line(name)}: no file matches; check the pattern")
    return files


def _container(path: Path) -> Container:
    if os.path.isdir(path):  # unlike path.is_dir(), accepts any name
        container = folder_container(path)
        for source in container.whole:
            for file in source.paths:
                _readable(file)
        return container
    _readable(path)
    if path.name in CORNELL_FILES:
        paths = tuple(_readable(path.with_name(file)) for file in CORNELL_FILES)
        return Container(path.name, [Source(one_line(str(path)), paths, "cornell")])
    return file_container(path)


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


def _chatterbot() -> Source:
    folder = importlib.resources.files("chatterbot_corpus") / "data" / "chinese"
    paths = tuple(Path(str(entry)) for entry in sorted(folder.iterdir(), key=lambda entry: entry.name))
    return Source("the built-in ChatterBot corpus", paths, "chatterbot")
