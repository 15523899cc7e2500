"""From the names that the user gives (files, globs, folders, none) to sources of pairs, and to their parts."""

import contextlib
import functools
import glob
import importlib.resources
import io
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from chatbot.corpus.reading.file_kinds import (
    CACHE_TAG,
    TEST,
    TRAINING,
    VALIDATION,
    WORDS,
    is_hidden,
    is_no_data,
    part_of,
)
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.text_file import open_files
from chatbot.corpus.reading.workbooks import is_workbook, titles
from chatbot.display import one_line
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
    tail = b""
    while block := stream.read(BLOCK):
        text = tail + block
        if b'":' in text or b'" :' in text:  # in lists of lists, no key is left
            keys += [match[1].decode() for match in NEXT.finditer(text) if _word(match[1])]
        tail = text[-OVERLAP:]
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


MAX_FILES = 10_000  # of a folder


@dataclass(frozen=True)
class Source:
    """Files that are read together: one or more files, two parallel files or the built-in corpus."""

    name: str  # for messages
    paths: tuple[Path, ...]
    kind: str  # "file", "parallel" or "chatterbot"
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


def _merged(sources: Iterable[Source]) -> list[Source]:
    """Return the sources with those of one folder as one, and those of one archive as one."""
    result: list[Source] = []
    for source in sources:
        last = result[-1] if result else None
        if last is None or last.name != source.name or last.part or source.part:
            result.append(source)
        elif last.paths == source.paths:
            result[-1] = replace(last, members=last.members + source.members)
        elif not last.members and not source.members:
            result[-1] = replace(last, paths=last.paths + source.paths)
        else:
            result.append(source)
    return result


def _source_of(path: Path) -> Source:
    """Return a file, or the files of a folder and of the folders below it, sorted, without hidden ones and caches.

    Raises UserError for a folder without files, or with more than MAX_FILES.
    """
    name = one_line(str(path))
    if not os.path.isdir(path):  # unlike path.is_dir(), accepts any name
        return Source(name, (_readable(path),), "file")
    files = sorted(islice(_files_below(path), MAX_FILES + 1))
    if all(map(is_no_data, files)):
        raise UserError(f"{name}: a directory without files of pairs; give a file")
    if len(files) > MAX_FILES:
        raise UserError(f"{name}: a directory of more than {MAX_FILES:,} files; give a glob, such as {name}/*.tsv")
    paths = tuple(_readable(path / file) for file in files)
    return Source(one_line(str(paths[0])) if len(paths) == 1 else name, paths, "file")


def _files_below(path: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(path):
        if CACHE_TAG in files:
            folders[:] = []
            continue
        folders[:] = sorted(inner for inner in folders if not is_hidden(inner))
        for file in files:
            if not is_hidden(file) and os.path.isfile(os.path.join(folder, file)):
                yield Path(folder, file).relative_to(path).as_posix()


def _leaves(source: Source, folder: Path) -> Iterator[tuple[str, Source]]:
    """Yield (name that may name a part, source) of each file, member of an archive, and part of a JSON object.

    The name of a file that the user gave decides nothing.
    """
    for path in source.paths:
        label = path.relative_to(folder).as_posix() if path != folder else ""
        for member, keys in _scanned(path) or [("", [])]:
            leaf = replace(source, paths=(path,), members=(member,) if member else ())
            parts = {WORDS[key.casefold()]: key for key in keys}
            if member or TRAINING in parts:
                leaf = replace(leaf, name=one_line(str(path)))
            if TRAINING in parts:  # keys that name no part are read with it
                yield from (("/".join((label, member, key)), replace(leaf, part=part)) for part, key in parts.items())
            else:
                yield f"{label}/{member}", leaf


def _scanned(path: Path) -> list[tuple[str, list[str]]]:
    """Return (name in the archive, part keys of a JSON object) of each file in a file, [] for one that is damaged."""
    return _scan(path, path.stat().st_mtime_ns, path.stat().st_size)


@functools.cache  # a command asks several times for the same, and a .tar.gz takes seconds
def _scan(path: Path, modified: int, size: int) -> list[tuple[str, list[str]]]:
    with contextlib.suppress(UserError, OSError):
        if is_workbook(path):
            return [(title, []) for title in titles(path)]
        return [(file.member, part_keys(file.stream)) for file in open_files(path, one_line(str(path)), Report())]
    return []


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


def find_sources(files: Sequence[str]) -> list[Source]:
    """Return the sources of these names in order, each file once; the files of a glob or a folder are sorted.

    Raises UserError for a file that is missing or unreadable, a folder without files, and a glob without a match.
    """
    return _distinct(_source_of(path) for name in files for path in _expanded(name))


def find_parts(files: Sequence[str], source_file: str | None = None, target_file: str | None = None) -> Parts:
    """Return the sources of these names, divided into parts.

    A folder, an archive or a JSON object that has a training part is divided by the names in it (`part_of`). All other
    files belong to training, whatever their names, since the user gave them. Without any name, training has the
    built-in ChatterBot corpus. Raises UserError as `find_sources`, and for one parallel file without the other.
    """
    parts: dict[str, list[Source]] = {TRAINING: [], VALIDATION: [], TEST: []}
    for path in (path for name in files for path in _expanded(name)):
        source = _source_of(path)
        leaves = [(part_of(label), leaf) for label, leaf in _leaves(source, path)]
        if TRAINING not in [part for part, _ in leaves]:
            parts[TRAINING].append(source)
            continue
        for part, chosen in parts.items():
            inside = _merged(leaf for name, leaf in leaves if (name or TRAINING) == part)
            chosen += [_named_for(part, source) for source in inside]
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


def _readable(path: Path) -> Path:
    name = one_line(str(path))
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UserError(f"{name}: no such file; check the path") from None
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
