"""Files as chunks of tokens on disk: the slow part of encoding, done once for the same files and settings."""

import dataclasses
import functools
import importlib.metadata
import itertools
import json
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus.cache import content_key, is_complete, key_of, make_once
from chatbot.corpus.chunks import PAIRS_PER_CHUNK, load_arrays, load_chunk, tokenise_chunk
from chatbot.corpus.history import pair_hashes, turn_rows
from chatbot.corpus.pair_ids import Hashes, Mask
from chatbot.corpus.reading.files.sources import Source
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import NEW, Pair
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report, report_of
from chatbot.corpus.selection import PairHashes, Preparation, preparation
from chatbot.corpus.workers import in_order, progress_bar
from chatbot.errors import UserError

# Increase these whenever the same files and settings give other tokens than before: without history, and with it.
VERSION, HISTORY_VERSION = 6, 7
# Smaller files are tokenised in this process, before worker processes would have started.
SERIAL_BYTES = 3_000_000

DESCRIPTION = "tokens.json"


def version_of(history: bool) -> int:
    """Return the version of the tokens. history: whether sources have the turns before the question."""
    return HISTORY_VERSION if history else VERSION


@dataclasses.dataclass(frozen=True)
class CorpusFiles:
    """The files of a corpus, and how their pairs are prepared."""

    sources: tuple[Source, ...]
    options: ReadOptions
    preparation: Preparation
    cache: Path

    @functools.cached_property
    def key(self) -> str:
        """A hash of all inputs of the tokens: the content of the files, what their names decide, and the settings."""
        prepared = {**dataclasses.asdict(self.preparation), "dictionary": None}
        if self.preparation.dictionary:
            prepared["dictionary"] = content_key(Path(self.preparation.dictionary))
        return key_of(
            version=version_of(self.preparation.history),
            sources=[
                (
                    source.kind,
                    [content_key(path) for path in source.paths],
                    source.deciding_names,
                    source.members,
                    source.part,
                )
                for source in self.sources
            ],
            options=dataclasses.asdict(self.options),
            preparation=prepared,
            jieba=importlib.metadata.version("jieba"),
            rjieba=importlib.metadata.version("rjieba"),
            unicode=unicodedata.unidata_version,
            opencc=importlib.metadata.version("opencc") if "simplified" in self.preparation.rules else None,
        )

    @property
    def folder(self) -> Path:
        """The folder with the chunks of tokens."""
        return self.cache / f"tokens-{self.key}"

    @property
    def is_tokenised(self) -> bool:
        """Whether the tokens are in the cache."""
        return is_complete(self.folder)

    def check_unchanged(self) -> None:
        """Raise UserError when the files have changed since the key was computed."""
        if dataclasses.replace(self).key != self.key:
            names = ", ".join(source.name for source in self.sources)
            raise UserError(f"{names}: changed while it was read; run the command again when it is complete")


class ChunkFile(NamedTuple):
    """A chunk on disk."""

    path: Path
    source: int  # the index of the source of its pairs
    pairs: int


@dataclasses.dataclass(frozen=True)
class TokenisedFiles:
    """The chunks of all files, in order, and a report for each file."""

    chunks: list[ChunkFile]
    reports: list[Report]  # [sources]

    def hashes(self, turns: int = 0) -> PairHashes:
        """Return the hashes of all pairs, with so many turns of history."""
        none = np.zeros(0, np.uint64)
        chunks = [_hashes(chunk.path, turns) for chunk in self.chunks]

        def joined(field: str) -> Hashes:
            return np.concatenate([none, *(getattr(chunk, field) for chunk in chunks)])

        pairs, groups, answers = joined("pairs"), joined("groups"), joined("answers")
        return PairHashes(pairs, groups, answers, joined("examples") if turns else pairs)

    def usable(self) -> Mask:
        """Return the mask of the pairs that were not dropped, [pairs]. The turns of the others are in the history."""
        masks = [load_arrays(chunk.path, "usable") or [np.ones(chunk.pairs, np.bool_)] for chunk in self.chunks]
        return np.concatenate([np.zeros(0, np.bool_), *(mask for (mask,) in masks)])

    def by_chunk(self, mask: Mask) -> list[Mask]:
        """Split a mask of all pairs into one mask for each chunk."""
        return np.split(mask, np.cumsum([chunk.pairs for chunk in self.chunks]))[:-1]

    def by_source(self, mask: Mask) -> list[int]:
        """Return the number of pairs of each source that the mask selects."""
        counts = [0] * len(self.reports)
        for chunk, part in zip(self.chunks, self.by_chunk(mask), strict=True):
            counts[chunk.source] += int(part.sum())
        return counts

    def turns(self, history: int) -> Iterator[tuple[list[list[str]], list[str]]]:
        """Yield the tokens of every question after those of the last turns before it, and the tokens of its answer.

        Only of usable pairs. history: the maximum number of turns before the question.
        """
        for path, _, pairs in self.chunks:
            chunk = load_chunk(path)
            rows = [row for pair in chunk.pairs(np.arange(pairs)) for row in pair]
            for pair, turns in enumerate(turn_rows(chunk.links, history)):
                if chunk.is_usable(pair):
                    yield [rows[row] for row in turns[::-1].tolist() if row >= 0], rows[turns[0] + 1]


def _hashes(path: Path, turns: int) -> PairHashes:
    pairs, questions, answers, links = load_arrays(path, "pair_hashes", "question_hashes", "answer_hashes", "links")
    return pair_hashes(pairs, questions, answers, links, turns)


def corpus_files(sources: Sequence[Source], settings: CorpusSettings, history: int = 0) -> CorpusFiles:
    """Return the files of a corpus. Raises UserError if the block list cannot be read or a library is missing.

    history: the maximum number of turns before a question.
    """
    options = ReadOptions(settings.columns, settings.encoding, settings.format, settings.me)
    return CorpusFiles(tuple(sources), options, preparation(settings, history > 0), Path(settings.cache))


def tokenise(files: CorpusFiles, pool: ProcessPoolExecutor) -> TokenisedFiles:
    """Read, clean and tokenise all pairs in the processes of the pool, or read their tokens from the cache.

    Raises UserError for files that cannot be used, or that change while they are read.
    """
    with make_once(files.folder) as part:
        if part:
            size = sum(path.stat().st_size for source in files.sources for path in source.paths)
            reports = [Report(source.name) for source in files.sources]
            tasks = _tasks(files, reports, part)
            chunks: list[tuple[str, int, int]] = []
            with progress_bar("Tokenising", size, "B") as bar:
                for path, source, pairs, report in in_order(_write_chunk, tasks, pool if size > SERIAL_BYTES else None):
                    chunks.append((path.name, source, pairs))
                    reports[source].add(report)
                    bar.update(sum(report.read_bytes for report in reports) - bar.n)
            files.check_unchanged()
            description = {"chunks": chunks, "reports": [dataclasses.asdict(report) for report in reports]}
            (part / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")
    description = json.loads((files.folder / DESCRIPTION).read_text(encoding="utf-8"))
    return TokenisedFiles(
        [ChunkFile(files.folder / name, source, pairs) for name, source, pairs in description["chunks"]],
        renamed_reports(description["reports"], files.sources),
    )


def _tasks(
    files: CorpusFiles, reports: Sequence[Report], folder: Path
) -> Iterator[tuple[Path, int, list[Pair], int, str, Preparation]]:
    """Yield the arguments of `_write_chunk` for every chunk. The reports grow as the files are read."""
    for index, (source, report) in enumerate(zip(files.sources, reports, strict=True)):
        for first, pairs in read_in_chunks(source, report, files.options):
            yield folder / f"{index:05}-{first:09}.npz", index, pairs, first, source.name, files.preparation


def _write_chunk(
    path: Path, source: int, pairs: list[Pair], first: int, name: str, preparation: Preparation
) -> tuple[Path, int, int, Report]:
    chunk, report = tokenise_chunk(pairs, first, name, preparation)
    chunk.save(path)
    return path, source, len(chunk), report


def read_in_chunks(source: Source, report: Report, options: ReadOptions) -> Iterator[tuple[int, list[Pair]]]:
    """Yield (number of the first pair, from 1; the pairs) for each chunk of a source.

    A chunk ends with a conversation, unless that has more than PAIRS_PER_CHUNK pairs beyond the end.
    """
    pairs = read(source, report, options)
    first = 1
    following: list[Pair] = []  # the pair after the chunk
    while chunk := following + list(itertools.islice(pairs, PAIRS_PER_CHUNK - len(following))):
        following = []
        for pair in itertools.islice(pairs, PAIRS_PER_CHUNK):
            if pair[2] == NEW:
                following = [pair]
                break
            chunk.append(pair)
        yield first, chunk
        first += len(chunk)


def renamed_reports(reports: Sequence[dict[str, Any]], sources: Sequence[Source]) -> list[Report]:
    """Restore reports from the cache, with the present names of the files."""
    return [report_of(values, source.name) for values, source in zip(reports, sources, strict=True)]
