"""Files of a corpus, and their tokenised chunks, which are cached because tokenising is slow."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from chatbot.config.corpus import AUTO, NONE, PIECES, TEXT_RULES, CorpusSettings, FileSettings
from chatbot.corpus.cache import content_key, key_of, make_once
from chatbot.corpus.chunks import PAIRS_PER_CHUNK, load_hashes, tokenise_chunk
from chatbot.corpus.cleaning import MAX_EXAMINED, cleaner, is_segmented
from chatbot.corpus.history import pair_hashes
from chatbot.corpus.pair_ids import Mask
from chatbot.corpus.pieces import open_tokenizer
from chatbot.corpus.reading.containers import PARSERS
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import ReadOptions, Report, restore_report
from chatbot.corpus.reading.sources import Parts, Source, find_parts, find_sources
from chatbot.corpus.reading.turns import NEW, Pair
from chatbot.corpus.selection import PairHashes, word_filter
from chatbot.corpus.tokenizer import tokenizer, without_pair_rules
from chatbot.corpus.workers import Processes, progress_bar, worker_pool
from chatbot.display import one_line
from chatbot.errors import UserError

# Version of the cached tokens. Increase it when a change of the code affects the tokens of a file.
VERSION = 12
READING = Path(__file__).with_name("reading")  # package that contains tables for reading files
# For files of at most this total size, no worker processes are started, because starting them takes longer.
SERIAL_BYTES = 3_000_000

DESCRIPTION = "tokens.json"
SPACES = "spaces"  # name of the cleaning rule
FIRST_PAIRS = 2_000  # number of pairs to examine for spaces between words


@dataclasses.dataclass(frozen=True)
class CorpusFiles:
    """Files of a corpus, and the settings for reading, cleaning and tokenising them."""

    sources: tuple[Source, ...]
    settings: CorpusSettings

    @functools.cached_property
    def dates(self) -> list[tuple[int, int]]:
        """Modification time and size of each file, recorded before the files are read."""
        files = [path.stat() for source in self.sources for path in source.paths]
        return [(file.st_mtime_ns, file.st_size) for file in files]

    @functools.cached_property
    def key(self) -> str:
        """Hash of everything that affects the tokens, such as the files, the settings and the versions of packages."""
        _ = self.dates
        settings = self.settings
        rules = [rule for rule in TEXT_RULES if rule in self.settings.clean]
        block_list, dictionary = (path and Path(path) for path in (settings.block_list, settings.dictionary))
        word_lists = [block_list and content_key(block_list), dictionary and content_key(dictionary)]
        if settings.tokenizer == PIECES and dictionary:  # the tokenizer of a vocab.txt depends on a second file
            word_lists[1] = open_tokenizer(dictionary).to_str()
        packages = [*PARSERS, "rjieba"]
        packages += ["jieba"] if settings.dictionary else []  # the user dictionary extends the dictionary of jieba
        packages += ["tokenizers"] if settings.tokenizer == PIECES else []
        packages += ["opencc"] if "simplified" in rules else []
        return key_of(
            version=VERSION,
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
            tables={path.name: content_key(path) for path in READING.iterdir() if path.suffix not in ("", ".py")},
            preparation=[rules, word_lists, settings.tokenizer],
            versions=[[found.version for found in importlib.metadata.distributions(name=name)] for name in packages],
            unicode=unicodedata.unidata_version,
        )

    @property
    def options(self) -> ReadOptions:
        """Options for reading the files."""
        s = self.settings
        return ReadOptions(s.columns, s.encoding, s.format, s.me, None, s.map, s.head, s.dates)

    @property
    def folder(self) -> Path:
        """Cache folder of the tokenised chunks."""
        return Path(self.settings.cache) / f"tokens-{self.key}"

    def check_unchanged(self) -> None:
        """Raise UserError if a file has changed since it was read, for example because it is still downloading."""
        if dataclasses.replace(self).dates != self.dates:
            names = one_line(", ".join(source.name for source in self.sources), 120)
            raise UserError(f"{names}: changed while it was read; run the command again when it is complete")

    def restore_reports(self, reports: Sequence[dict[str, Any]]) -> list[Report]:
        """Restore cached reports, with the current names of the files."""
        return [restore_report(values, source.name) for values, source in zip(reports, self.sources, strict=True)]


def with_file_settings(settings: CorpusSettings, given: FileSettings) -> CorpusSettings:
    """Return `settings` with the files and reading options of `given`."""
    return dataclasses.replace(
        settings, **{field.name: getattr(given, field.name) for field in dataclasses.fields(FileSettings)}
    )


def corpus_files(sources: Sequence[Source], settings: CorpusSettings) -> CorpusFiles:
    """Return the files of a corpus. Raises UserError if a word list cannot be read or a library is missing."""
    cleaner(settings.clean)
    tokenizer(settings.tokenizer, settings.dictionary)
    word_filter(settings)
    return CorpusFiles(tuple(sources), settings)


def training_files(settings: CorpusSettings) -> CorpusFiles:
    """Return the training files. If the data are divided into splits, only the training split is used.

    Raises UserError if a file cannot be used.
    """
    return corpus_files(_parts(settings).training, settings)


def excluded_test_parts(settings: CorpusSettings) -> list[str]:
    """Return the names of the test splits in the data. Training does not read test splits."""
    return _parts(settings).left_out


def validation_files(settings: CorpusSettings, validation: str = AUTO) -> CorpusFiles | None:
    """Return the validation files, or None if there are none. Cleaning drops none of their pairs.

    Args:
        settings: Training files, cleaning rules and tokenizer.
        validation: A file, "none", or "auto" for the validation split of the training files.

    Raises:
        UserError: If a file cannot be used.
    """
    if validation == NONE:
        return None
    sources = _parts(settings).validation if validation == AUTO else find_sources([validation])
    return corpus_files(sources, without_pair_rules(settings)) if sources else None


def _parts(settings: CorpusSettings) -> Parts:
    return find_parts(settings.data, settings.source_file, settings.target_file)


def without_word_spaces(settings: CorpusSettings, notes: TextIO | None = None) -> CorpusSettings:
    """Add the cleaning rule "spaces" if a file has spaces between its Chinese words.

    Some corpora are published with such spaces, although people do not type them in a chat. Only the beginning of each
    file is examined. A note names the first file with such spaces. With `--clean none`, the rule is not added.

    Args:
        settings: Settings of the corpus.
        notes: Stream for the note; standard output if None.

    Raises:
        UserError: If a file cannot be used.
    """
    if SPACES in settings.clean or NONE in settings.clean:
        return settings
    for source in training_files(settings).sources:
        if source.kind != "chatterbot" and _is_segmented(source, corpus_files([source], settings).options):
            note = f"{source.name}: the spaces between its Chinese words are removed, as in chat (--clean {SPACES})."
            print(note, file=notes)
            return dataclasses.replace(settings, clean=(*settings.clean, SPACES))
    return settings


def _is_segmented(source: Source, options: ReadOptions) -> bool:
    text = ""
    with contextlib.closing(read(source, Report(), options)) as pairs:
        for question, answer, _ in itertools.islice(pairs, FIRST_PAIRS):
            text += f"{question}\n{answer}\n"
            if len(text) > MAX_EXAMINED:
                break
    return is_segmented(text)


class ChunkFile(NamedTuple):
    """A tokenised chunk on disk."""

    path: Path
    source: int  # index of the source
    pairs: int


@dataclasses.dataclass(frozen=True)
class TokenisedFiles:
    """The tokenised chunks of all files, in order, and a report on each file."""

    chunks: list[ChunkFile]
    reports: list[Report]  # [sources]

    def hashes(self, turns: int = 0) -> PairHashes:
        """Return the hashes of all pairs. Hashes of examples include at most `turns` previous turns."""
        none = pair_hashes(np.zeros(0, np.uint64), np.zeros(0, np.uint8), 0)
        chunk_hashes = (pair_hashes(*load_hashes(chunk.path), turns) for chunk in self.chunks)
        return PairHashes(*map(np.concatenate, zip(none, *chunk_hashes, strict=True)))

    def by_chunk(self, mask: Mask) -> list[Mask]:
        """Split a mask of all pairs into one mask per chunk."""
        return np.split(mask, np.cumsum([chunk.pairs for chunk in self.chunks]))[:-1]

    def tasks(self, mask: Mask, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return the arguments of a task for each chunk: its absolute path, the mask of its pairs, and `arguments`."""
        masks = zip(self.chunks, self.by_chunk(mask), strict=True)
        return [(chunk.path.absolute(), part, *arguments) for chunk, part in masks]

    def by_source(self, mask: Mask) -> list[int]:
        """Return the number of selected pairs of each source."""
        counts = [0] * len(self.reports)
        for chunk, part in zip(self.chunks, self.by_chunk(mask), strict=True):
            counts[chunk.source] += int(part.sum())
        return counts


def tokenise(files: CorpusFiles, pool: Processes | None = None) -> TokenisedFiles:
    """Read, clean and tokenise all pairs, or load their tokens from the cache.

    Args:
        files: Files of the corpus.
        pool: Worker processes; if None, workers are started if needed.

    Raises:
        UserError: If a file cannot be used, or changes while it is being read.
    """
    with make_once(files.folder) as part:
        if part:
            with worker_pool(pool) as workers:
                chunks, reports = _write_chunks(files, part, workers)
            files.check_unchanged()
            description = {"chunks": chunks, "reports": [dataclasses.asdict(report) for report in reports]}
            (part / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")
    description = json.loads((files.folder / DESCRIPTION).read_text(encoding="utf-8"))
    chunk_files = [ChunkFile(files.folder / name, source, pairs) for name, source, pairs in description["chunks"]]
    return TokenisedFiles(chunk_files, files.restore_reports(description["reports"]))


def _write_chunks(files: CorpusFiles, folder: Path, pool: Processes) -> tuple[list[tuple[str, int, int]], list[Report]]:
    """Tokenise all files and write the chunks to a folder.

    Returns:
        The name, source index and number of pairs of each chunk, and the report on each source.
    """
    size = sum(size for _, size in files.dates)
    tasks = [(index, source, files, folder.absolute()) for index, source in enumerate(files.sources)]
    chunks = []
    reports = [Report(source.name) for source in files.sources]
    with progress_bar("Tokenising", size, "B") as bar:
        for name, source, pairs, report in pool.in_order(_write_chunk, tasks, size <= SERIAL_BYTES, _read_chunks):
            if name:
                reports[source].add(report)
                reports[source].read_bytes = report.read_bytes
            else:  # the report lists the reader's counts before the counts of the chunks
                report.add(reports[source])
                reports[source] = report
            if pairs:
                chunks.append((name, source, pairs))
            bar.update(sum(report.read_bytes for report in reports) - bar.n)
    return chunks, reports


def _read_chunks(
    index: int, source: Source, files: CorpusFiles, folder: Path
) -> Iterator[tuple[Path, int, list[Pair], int, Report, CorpusSettings]]:
    """Yield one task per chunk of pairs, and a final task with the reader's report."""
    report = Report(source.name)
    for first, pairs in read_in_chunks(source, report, files.options):
        chunk_report = Report(source.name, read_bytes=report.read_bytes)
        yield folder / f"{index:05}-{first:09}.npz", index, pairs, first, chunk_report, files.settings
    yield folder, index, [], 0, report, files.settings


def _write_chunk(
    path: Path, source: int, pairs: list[Pair], first: int, report: Report, settings: CorpusSettings
) -> tuple[str, int, int, Report]:
    if not pairs:
        return "", source, 0, report
    chunk = tokenise_chunk(pairs, first, report, settings)
    chunk.save(path)
    return path.name, source, len(chunk), report


def read_in_chunks(source: Source, report: Report, options: ReadOptions) -> Iterator[tuple[int, list[Pair]]]:
    """Yield the pairs of a source in chunks, each with the number of its first pair, counted from 1.

    A chunk ends at the end of a conversation, unless the conversation continues for more than PAIRS_PER_CHUNK pairs.
    """
    pairs = read(source, report, options)
    first = 1
    following: list[Pair] = []  # first pair of the next chunk
    while chunk := following + list(itertools.islice(pairs, PAIRS_PER_CHUNK - len(following))):
        following = []
        for pair in itertools.islice(pairs, PAIRS_PER_CHUNK):
            if pair[2] == NEW:
                following = [pair]
                break
            chunk.append(pair)
        yield first, chunk
        first += len(chunk)
