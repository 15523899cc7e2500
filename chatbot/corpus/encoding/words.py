"""Files as chunks of tokens on disk: the slow part of encoding, done once for files and settings of text."""

import dataclasses
import functools
import importlib.metadata
import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chatbot.config.corpus import TextSettings
from chatbot.corpus.encoding.cache import cached, content_key, key_of, read_manifest
from chatbot.corpus.encoding.chunks import (
    PAIRS,
    Hashes,
    Pair,
    Preparation,
    cut_chunk,
    load_chunk,
    load_hashes,
    preparation,
)
from chatbot.corpus.encoding.workers import cores, in_order, progress
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report, report_of
from chatbot.corpus.reading.sources import Source
from chatbot.errors import UserError

# To be raised whenever the same files and settings give other tokens than before.
VERSION = 2
# Smaller files are cut sooner than a second process has started.
FEW_BYTES = 3_000_000


@dataclasses.dataclass(frozen=True)
class Words:
    """The tokens of some files, made when they are first asked for."""

    sources: tuple[Source, ...]
    columns: tuple[str, ...]
    how: Preparation
    cache: Path

    @functools.cached_property
    def key(self) -> str:
        """A name for these tokens: files by content, not by name or date, and every setting that matters."""
        how = {**dataclasses.asdict(self.how), "dictionary": None}
        if self.how.dictionary:
            how["dictionary"] = content_key(Path(self.how.dictionary))
        return key_of(
            version=VERSION,
            sources=[(source.kind, [content_key(path) for path in source.paths]) for source in self.sources],
            columns=self.columns,
            how=how,
            jieba=importlib.metadata.version("jieba"),
            rjieba=importlib.metadata.version("rjieba"),
            unicode=unicodedata.unidata_version,
            opencc=importlib.metadata.version("opencc") if "simplified" in self.how.rules else None,
        )

    def check_unchanged(self) -> None:
        """Raises UserError when a file is no longer what it was when its name in the cache was computed."""
        if dataclasses.replace(self).key != self.key:
            names = ", ".join(source.name for source in self.sources)
            raise UserError(f"{names}: changed while it was read; give the command again when it is whole")

    @functools.cached_property
    def _built(self) -> tuple[Path, dict[str, Any]]:
        return cached(self.cache, self.name, self.build)

    @property
    def kept(self) -> bool:
        """Whether they are in the cache."""
        return read_manifest(self.cache / self.name) is not None

    @property
    def name(self) -> str:
        """What their folder is called."""
        return f"words-{self.key}"

    def build(self, folder: Path) -> dict[str, Any]:
        """Write the chunks; returns which there are, and the reports."""
        size = sum(path.stat().st_size for source in self.sources for path in source.paths)
        chunks: list[tuple[int, str]] = []
        reports = [Report(source.name) for source in self.sources]
        tasks = self._tasks(folder, reports)
        with progress("Cutting words", size, "B") as bar:
            for number, name, found in in_order(_cut, tasks, cores() if size > FEW_BYTES else 1):
                chunks.append((number, name))
                reports[number].add(found)
                bar.update(sum(report.read_bytes for report in reports) - bar.n)
        self.check_unchanged()
        return {"chunks": chunks, "reports": [dataclasses.asdict(report) for report in reports]}

    def _tasks(self, folder: Path, reports: Sequence[Report]) -> Iterator[tuple]:
        for number, (source, report) in enumerate(zip(self.sources, reports, strict=True)):
            for first, pairs in in_chunks(source, report, self.columns):
                yield folder / f"{number:05}-{first:09}.npz", number, pairs, first, source.name, self.how

    @property
    def reports(self) -> list[Report]:
        """What was found in each source and left out of it."""
        return named_reports(self._built[1]["reports"], self.sources)

    @property
    def chunks(self) -> list[tuple[int, Path]]:
        """(number of its source, file) of each chunk."""
        folder, said = self._built
        return [(number, folder / name) for number, name in said["chunks"]]

    def hashes(self, which: str) -> Iterator[Hashes]:
        """The "pair_hashes" or "answer_hashes" of each chunk."""
        return (load_hashes(path, which) for _, path in self.chunks)

    def pair_hashes(self) -> list[int]:
        """The hash of every pair."""
        return [value for hashes in self.hashes("pair_hashes") for value in hashes.tolist()]

    def tokens(self) -> Iterator[tuple[list[str], list[str]]]:
        """The tokens of every question and its answer."""
        for _, path in self.chunks:
            chunk = load_chunk(path)
            yield from chunk.pairs(np.arange(len(chunk)))


def in_chunks(source: Source, report: Report, columns: tuple[str, ...]) -> Iterator[tuple[int, list[Pair]]]:
    """(number of the first pair, from 1; the pairs) of each chunk of a source."""
    pairs = read(source, report, columns)
    for first in itertools.count(1, PAIRS):
        chunk = list(itertools.islice(pairs, PAIRS))
        if not chunk:
            return
        yield first, chunk


def named_reports(reports: Sequence[dict[str, Any]], sources: Sequence[Source]) -> list[Report]:
    """Kept reports under the names that the files have now."""
    return [report_of(values, source.name) for values, source in zip(reports, sources, strict=True)]


def words_of(sources: Sequence[Source], settings: TextSettings) -> Words:
    """The words of these sources under these settings. Raises UserError when the block list cannot be read."""
    return Words(tuple(sources), settings.columns, preparation(settings), Path(settings.cache))


def _cut(
    path: Path, source: int, pairs: list[Pair], first: int, name: str, how: Preparation
) -> tuple[int, str, Report]:
    """Write a chunk; returns its source, its name and its report."""
    chunk, report = cut_chunk(pairs, first, name, how)
    chunk.save(path)
    return source, path.name, report
