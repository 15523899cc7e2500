"""Finds the files of a corpus, and splits them into training, validation and test parts."""

import functools
import glob
import importlib.resources
import io
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path, PurePosixPath

from chatbot.corpus.reading.containers import OpenFile, Sheets, is_hidden, open_contents
from chatbot.corpus.reading.report import Report
from chatbot.display import one_line
from chatbot.errors import UserError

MAX_FILES = 10_000  # maximum number of files in a folder
# Programs mark their cache folders with this file (https://bford.info/cachedir/).
CACHE_TAG = "CACHEDIR.TAG"
NO_DATA = re.compile(
    r"(readme|licen[cs]e|copying|notice|changelog|citation|authors)(\W.*)?"
    r"|dataset_(infos?|dict)\.json|state\.json|cache-[0-9a-f]+\.arrow"  # files in folders saved by `datasets`
    r"|(users|channels|groups|dms|mpims|integration_logs|canvases)\.json"  # files in Slack exports
    r"|(movie_(titles|characters)_metadata|raw_script_urls)\.txt|chameleons\.pdf"  # files of Cornell's movie dialogues
    r"|.*\.(md|rst|html?|pdf|docx?|pptx?|png|jpe?g|gif|svg|webp|bmp|mp[34]|wav|py|ipynb|sh|js|css)",
    re.IGNORECASE,
)

TRAINING = "training"
VALIDATION = "validation"
TEST = "test"
PART_WORDS = {
    **dict.fromkeys(("train", "training", "训练集", "訓練集"), TRAINING),
    **dict.fromkeys(("valid", "validation", "val", "dev", "验证集", "驗證集", "开发集", "開發集"), VALIDATION),
    **dict.fromkeys(("test", "testing", "eval", "测试集", "測試集"), TEST),
}
WORD = re.compile("|".join(["[A-Z]?[a-z]+", "[A-Z]+", *(word for word in PART_WORDS if not word.isascii())]))

# Matches a JSON key that names a part, such as "train". Text inside a string cannot match, because its quotation marks
# are escaped.
KEY = '"(' + "|".join(PART_WORDS) + r')"\s*:\s*[\[{]'
# Matches the beginning of an object up to the first key that contains a list or an object. Scalars may come before it.
FIRST_KEY = re.compile((r"(?:\xef\xbb\xbf)?\s*\{[^\[{]*?" + KEY).encode(), re.IGNORECASE)
NEXT_KEY = re.compile((r"[\]}]\s*,\s*" + KEY).encode(), re.IGNORECASE)  # a key that follows a list or an object
HEAD = 4096  # number of bytes at the beginning of a JSON object in which its first part must be named
BLOCK, OVERLAP = 2**20, 256  # number of bytes searched at a time, and number of bytes shared with the next block


@dataclass(frozen=True)
class Source:
    """Files that are read together: one or more ordinary files, two parallel files, or the built-in corpus."""

    name: str  # name shown in messages
    paths: tuple[Path, ...]
    kind: str  # "file", "parallel" or "chatterbot"
    members: tuple[str, ...] = ()  # archive members to read; () for all
    part: str | None = None  # part of a JSON object to read, such as "training"; None for the whole object

    @property
    def deciding_names(self) -> list[str]:
        """The parts of the file names that affect how the files are read.

        For a single file, this is its extension. For the files of a folder, it is the path relative to the folder,
        because files with names such as README.md are not read as data.
        """
        if self.kind != "file":
            return []
        if len(self.paths) == 1:
            return ["".join(self.paths[0].suffixes).casefold()]
        common = os.path.commonpath([path.parent for path in self.paths])
        return [path.relative_to(common).as_posix() for path in self.paths]


@dataclass(frozen=True)
class Parts:
    """The sources for training, validation and testing."""

    training: list[Source]
    validation: list[Source]  # empty if the corpus has no validation part
    test: list[Source]

    @property
    def left_out(self) -> list[str]:
        """The names of the test sources, which are used neither for training nor for validation."""
        return [source.name for source in self.test]

    @property
    def measured(self) -> list[Source]:
        """The sources for evaluation: the test, or else the validation, or else the training sources."""
        return self.test or self.validation or self.training


def find_sources(files: Sequence[str]) -> list[Source]:
    """Return the sources for file names, globs and folders, without duplicates.

    The order of the names is kept. The files of a glob or a folder are sorted.

    Raises:
        UserError: If a file is missing or unreadable, a folder contains no files, or a glob matches nothing.
    """
    return _unique(_source_of(path) for path in _expand(files))


def find_parts(files: Sequence[str], source_file: str | None = None, target_file: str | None = None) -> Parts:
    """Return the sources for file names, globs and folders, split into training, validation and test parts.

    A folder, an archive or a JSON object is split if it contains a training part, such as train.json (see `part_of`).
    Everything else is used for training, even a single file with a name such as test.json.

    Args:
        files: Names of files, globs and folders. If empty, the built-in ChatterBot corpus is used.
        source_file: Parallel file with the questions.
        target_file: Parallel file with the answers.

    Raises:
        UserError: As in `find_sources`, or if only one parallel file is given.
    """
    parts: dict[str, list[Source]] = {TRAINING: [], VALIDATION: [], TEST: []}
    for path in _expand(files):
        source = _source_of(path)
        pieces = [piece for file in source.paths for piece in _pieces(file, path)]
        if TRAINING not in [part for part, _ in pieces]:
            parts[TRAINING].append(source)
            continue
        for part, sources in parts.items():
            sources += _merge_pieces([piece for name, piece in pieces if (name or TRAINING) == part], part, path)
    training = _unique([*parts[TRAINING], *_parallel_sources(source_file, target_file)]) or [_chatterbot_source()]
    return Parts(training, _unique(parts[VALIDATION]), _unique(parts[TEST]))


def _pieces(path: Path, root: Path) -> Iterator[tuple[str | None, Source]]:
    """Split a file into sources: one for each member of an archive, and one for each part of a JSON object.

    Yields:
        The part ("training", "validation", "test" or None) and the source. A file that cannot be split is one source.
    """
    label = path.relative_to(root).as_posix() if path != root else ""
    status = path.stat()
    for member, parts in _contents(path, status.st_mtime_ns, status.st_size):
        piece = Source("", (path,), "file", (member,) if member else ())
        if TRAINING in parts:  # Keys that name no part also belong to the training part.
            yield from ((part, replace(piece, part=part)) for part in parts)
        else:
            yield part_of(f"{label}/{member}"), piece


@functools.cache  # Cached because commands call this several times, and unpacking a large archive takes seconds.
def _contents(path: Path, modified: int, size: int) -> list[tuple[str, list[str]]]:
    """List the files in an archive, and the parts of those that are JSON objects.

    A damaged archive is treated as a single file.
    """
    found: list[tuple[str, list[str]]] = []
    try:
        for content in open_contents(path, one_line(str(path)), Report()):
            if isinstance(content, OpenFile):
                found.append((content.member, _parts_of_object(content.stream)))
            elif isinstance(content, Sheets):
                found += ((title, []) for title in content.titles)
    except (UserError, OSError):
        return [("", [])]
    return found or [("", [])]


def _parts_of_object(stream: io.BufferedReader) -> list[str]:
    """Return the parts that are named by the keys of a JSON object, such as "train" and "test".

    The list is empty if the first key that contains a list or an object names no part.
    """
    first = FIRST_KEY.match(stream.peek()[:HEAD])
    keys = [first[1]] if first else []
    tail = b""
    while first and (block := stream.read(BLOCK)):
        keys += NEXT_KEY.findall(tail + block)
        tail = block[-OVERLAP:]
    return list(dict.fromkeys(part_of_key(key.decode()) for key in keys))


def _merge_pieces(pieces: list[Source], part: str, root: Path) -> Iterator[Source]:
    """Merge the sources of a part.

    The plain files of a folder become one source. The members of an archive become one source, too.
    """

    def container(piece: Source) -> tuple[Path | None, str | None]:
        return (piece.paths[0] if piece.members or piece.part else None), piece.part

    for (path, keys), group in groupby(pieces, container):
        merged = list(group)
        paths = (path,) if path else tuple(piece.paths[0] for piece in merged)
        is_whole_file = path is None and len(paths) == 1
        name = one_line(str(paths[0])) if is_whole_file else f"{one_line(str(path or root))} ({part} part)"
        yield Source(name, paths, "file", tuple(member for piece in merged for member in piece.members), keys)


def part_of(name: str) -> str | None:
    """Return the part that a path names ("training", "validation" or "test"), or None.

    Only whole words count. For example, LCCC-base_train.json, data/dev/a.csv and trainPairs.tsv name a part, but
    latest.tsv does not. The file name is checked first, then its folder, and so on.
    """
    for step in reversed(PurePosixPath(name).parts):
        parts = {PART_WORDS[word] for word in map(str.casefold, WORD.findall(step)) if word in PART_WORDS}
        if parts == {VALIDATION, TEST}:  # for example, dev-test.json
            return TEST
        if len(parts) == 1:
            return parts.pop()
    return None


def part_of_key(key: object) -> str:
    """Return the part that a key of a JSON object names. Keys that name no part belong to training."""
    return PART_WORDS.get(str(key).casefold(), TRAINING)


def part_of_object(value: object, part: str | None) -> object:
    """Return the keys of a JSON object that belong to a part, without scalars. If `part` is None, return the object."""
    if part is None or not isinstance(value, dict):
        return value
    return {key: item for key, item in value.items() if isinstance(item, list | dict) and part_of_key(key) == part}


def is_no_data(name: str) -> bool:
    """Return whether the name of a file shows that it is documentation, a picture, a program or metadata."""
    return NO_DATA.fullmatch(PurePosixPath(name).name) is not None


def _source_of(path: Path) -> Source:
    """Return a source for a file or a folder. The files of a folder are sorted; hidden files and caches are skipped."""
    name = one_line(str(path))
    if not os.path.isdir(path):  # For invalid names, path.is_dir() may raise an error.
        return Source(name, (_check_readable(path),), "file")
    files = sorted(islice(_files_below(path), MAX_FILES + 1))
    if all(map(is_no_data, files)):
        raise UserError(f"{name}: a directory that contains no files with pairs; give a file")
    if len(files) > MAX_FILES:
        raise UserError(f"{name}: a directory of more than {MAX_FILES:,} files; give a glob, such as {name}/*.tsv")
    paths = tuple(_check_readable(path / file) for file in files)
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


def _parallel_sources(source_file: str | None, target_file: str | None) -> list[Source]:
    if (source_file is None) != (target_file is None):
        raise UserError("parallel files come in pairs: give both --source-file and --target-file")
    if source_file is None or target_file is None:
        return []
    paths = (_check_readable(Path(source_file)), _check_readable(Path(target_file)))
    return [Source(one_line(f"{source_file} + {target_file}"), paths, "parallel")]


def _unique(sources: Iterable[Source]) -> list[Source]:
    distinct: dict[object, Source] = {}
    for source in sources:
        paths = tuple(path.resolve() for path in source.paths)
        distinct.setdefault((paths, source.members, source.part), source)
    return list(distinct.values())


def _expand(names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        if os.path.lexists(name) or not glob.has_magic(name):
            yield Path(name)
            continue
        files = [path for path in map(Path, sorted(glob.glob(name, recursive=True))) if path.is_file()]
        if not files:
            raise UserError(f"{one_line(name)}: no file matches; check the pattern")
        yield from files


def _check_readable(path: Path) -> Path:
    name = one_line(str(path))
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UserError(f"{name}: no such file; check the path") from None
    except (OSError, ValueError) as error:  # ValueError is raised if the name contains a NUL character.
        raise UserError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not stat.S_ISREG(mode):  # a device or a pipe; devices can be endless, and pipes can be read only once
        raise UserError(f"{name}: not a regular file; give a file of pairs")
    if not os.access(path, os.R_OK):
        raise UserError(f"{name}: no permission to read it; run chmod u+r, or ask its owner")
    return path


def _chatterbot_source() -> Source:
    folder = importlib.resources.files("chatterbot_corpus") / "data" / "chinese"
    paths = tuple(Path(str(entry)) for entry in sorted(folder.iterdir(), key=lambda entry: entry.name))
    return Source("the built-in ChatterBot corpus", paths, "chatterbot")
