"""From the names that the user gives (files, globs, folders, none) to sources of pairs, and to their parts."""

import glob
import importlib.resources
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.files.containers import CORNELL_FILES, Container, Source, file_container, folder_container
from chatbot.corpus.reading.files.file_names import TEST, TRAINING, VALIDATION
from chatbot.errors import UserError


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
