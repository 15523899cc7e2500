"""From the names that the user gives (files, globs, folders, none) to sources of pairs, and to their parts."""

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

MAX_FILES = 10_000  # of a folder
# A folder with this file is a cache, of this program or of another one (https://bford.info/cachedir/).
CACHE_TAG = "CACHEDIR.TAG"
NO_DATA = re.compile(
    r"(readme|licen[cs]e|copying|notice|changelog|citation|authors)(\W.*)?"
    r"|dataset_(infos?|dict)\.json|state\.json|cache-[0-9a-f]+\.arrow"  # of a saved folder of `datasets`
    r"|(users|channels|groups|dms|mpims|integration_logs|canvases)\.json"  # of an export of Slack
    r"|(movie_(titles|characters)_metadata|raw_script_urls)\.txt|chameleons\.pdf"  # beside Cornell's pairs
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

KEY = '"(' + "|".join(PART_WORDS) + r')"\s*:\s*[\[{]'  # that names a part; within a text its quotes would be escaped
# The first key whose value is a list or an object, after others such as a version; a key after the end of one.
FIRST_KEY = re.compile((r"(?:\xef\xbb\xbf)?\s*\{[^\[{]*?" + KEY).encode(), re.IGNORECASE)
NEXT_KEY = re.compile((r"[\]}]\s*,\s*" + KEY).encode(), re.IGNORECASE)
HEAD = 4096  # bytes in which an object names its first part
BLOCK, OVERLAP = 2**20, 256  # bytes


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
    return _distinct(_source_of(path) for path in _expanded(files))


def find_parts(files: Sequence[str], source_file: str | None = None, target_file: str | None = None) -> Parts:
    """Return the sources of these names, divided into parts.

    A folder, an archive or a JSON object that has a training part is divided by the names in it (`part_of`). All other
    files belong to training, whatever their names, since the user gave them. Without any name, training has the
    built-in ChatterBot corpus. Raises UserError as `find_sources`, and for one parallel file without the other.
    """
    parts: dict[str, list[Source]] = {TRAINING: [], VALIDATION: [], TEST: []}
    for path in _expanded(files):
        source = _source_of(path)
        pieces = [piece for file in source.paths for piece in _pieces(file, path)]
        if TRAINING not in [part for part, _ in pieces]:
            parts[TRAINING].append(source)
            continue
        for part, chosen in parts.items():
            chosen += _joined([piece for of, piece in pieces if (of or TRAINING) == part], part, path)
    training = _distinct([*parts[TRAINING], *_parallel(source_file, target_file)]) or [_chatterbot()]
    return Parts(training, _distinct(parts[VALIDATION]), _distinct(parts[TEST]))


def _pieces(path: Path, given: Path) -> Iterator[tuple[str | None, Source]]:
    """Yield (part, source) of a file, of each member of an archive, or of the keys of an object for each part.

    The part is None if the name says none. The name that the user gave decides nothing.
    """
    label = path.relative_to(given).as_posix() if path != given else ""
    status = path.stat()
    for member, parts in _contents(path, status.st_mtime_ns, status.st_size):
        piece = Source("", (path,), "file", (member,) if member else ())
        if TRAINING in parts:  # with which keys are read that name no part
            yield from ((part, replace(piece, part=part)) for part in parts)
        else:
            yield part_of(f"{label}/{member}"), piece


@functools.cache  # a command asks several times for the same, and a .tar.gz takes seconds
def _contents(path: Path, modified: int, size: int) -> list[tuple[str, list[str]]]:
    """Return (name in the archive, parts of a JSON object) of each file in a file; a damaged one is a single file."""
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
    """Return the parts that keys of a JSON object name, [] if it begins with no such key.

    Reads the whole stream, though only if its first key names a part.
    """
    first = FIRST_KEY.match(stream.peek()[:HEAD])
    keys = [first[1]] if first else []
    tail = b""
    while first and (block := stream.read(BLOCK)):
        keys += NEXT_KEY.findall(tail + block)
        tail = block[-OVERLAP:]
    return list(dict.fromkeys(part_of_key(key.decode()) for key in keys))


def _joined(pieces: list[Source], part: str, given: Path) -> Iterator[Source]:
    """Yield the sources of a part: the files of a folder as one, those of an archive as one, and JSON objects."""

    def container(piece: Source) -> tuple[Path | None, str | None]:
        return (piece.paths[0] if piece.members or piece.part else None), piece.part

    for (path, keys), group in groupby(pieces, container):
        chosen = list(group)
        paths = (path,) if path else tuple(piece.paths[0] for piece in chosen)
        is_whole_file = path is None and len(paths) == 1
        name = one_line(str(paths[0])) if is_whole_file else f"{one_line(str(path or given))} ({part} part)"
        yield Source(name, paths, "file", tuple(member for piece in chosen for member in piece.members), keys)


def part_of(name: str) -> str | None:
    """Return the part of a corpus that a file or its folders are named for, None if they are not.

    A part is a word of the name: LCCC-base_train.json, data/dev/a.csv, trainPairs.tsv, 测试集.txt, but not latest.tsv.
    The file's own name comes first, then its folders from the innermost.
    """
    for step in reversed(PurePosixPath(name).parts):
        parts = {PART_WORDS[word] for word in map(str.casefold, WORD.findall(step)) if word in PART_WORDS}
        if parts == {VALIDATION, TEST}:  # such as dev-test
            return TEST
        if len(parts) == 1:
            return parts.pop()
    return None


def part_of_key(key: object) -> str:
    """Return the part that a key of an object belongs to."""
    return PART_WORDS.get(str(key).casefold(), TRAINING)


def part_of_object(value: object, part: str | None) -> object:
    """Return the lists and objects of one part. Keys that name no part belong to training."""
    if part is None or not isinstance(value, dict):
        return value
    return {key: item for key, item in value.items() if isinstance(item, list | dict) and part_of_key(key) == part}


def is_no_data(name: str) -> bool:
    """Return whether the file's name says that it is documentation, a picture or a program."""
    return NO_DATA.fullmatch(PurePosixPath(name).name) is not None


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


def _expanded(names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        if os.path.lexists(name) or not glob.has_magic(name):
            yield Path(name)
            continue
        files = [path for path in map(Path, sorted(glob.glob(name, recursive=True))) if path.is_file()]
        if not files:
            raise UserError(f"{one_line(name)}: no file matches; check the pattern")
        yield from files


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
