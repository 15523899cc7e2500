"""The files of a corpus, and their chunks of tokens in the cache: the slow part, done once for equal files."""

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
from chatbot.corpus.cleaning import EXAMINED, cleaner, is_cut_into_words
from chatbot.corpus.history import pair_hashes
from chatbot.corpus.pair_ids import Mask
from chatbot.corpus.pieces import open_tokenizer
from chatbot.corpus.reading.containers import PARSERS
from chatbot.corpus.reading.conversation import NEW, Pair
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import ReadOptions, Report, report_of
from chatbot.corpus.reading.sources import Parts, Source, find_parts, find_sources
from chatbot.corpus.selection import PairHashes, word_filter
from chatbot.corpus.tokenizer import tokenizer, without_pair_rules
from chatbot.corpus.workers import Processes, progress_bar, worker_pool
from chatbot.display import one_line
from chatbot.errors import UserError

# Increase this whenever the same files and settings give other tokens than before.
VERSION = 12
READING = Path(__file__).with_name("reading")  # whose files of data decide what is read
# Smaller files are tokenised in this process, before worker processes would have started.
SERIAL_BYTES = 3_000_000

DESCRIPTION = "tokens.json"
SPACES = "spaces"  # the cleaning rule
FIRST_PAIRS = 2_000  # that are examined for spaces between words


@dataclasses.dataclass(frozen=True)
class CorpusFiles:
    """The files of a corpus, and the settings by which they are read, cleaned and tokenised."""

    sources: tuple[Source, ...]
    settings: CorpusSettings

    @functools.cached_property
    def dates(self) -> list[tuple[int, int]]:
        """The date and the size of each file, before it is read."""
        files = [path.stat() for source in self.sources for path in source.paths]
        return [(file.st_mtime_ns, file.st_size) for file in files]

    @functools.cached_property
    def key(self) -> str:
        """A hash of all inputs of the tokens: the files, what their names decide, the settings, and what reads them."""
        _ = self.dates
        settings = self.settings
        rules = [rule for rule in TEXT_RULES if rule in self.settings.clean]
        block_list, dictionary = (path and Path(path) for path in (settings.block_list, settings.dictionary))
        word_lists = [block_list and content_key(block_list), dictionary and content_key(dictionary)]
        if settings.tokenizer == PIECES and dictionary:  # of a vocab.txt, other files decide, too
            word_lists[1] = open_tokenizer(dictionary).to_str()
        packages = [*PARSERS, "rjieba"]
        packages += ["jieba"] if settings.dictionary else []  # its dictionary is added to
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
        """How the files are read."""
        given = self.settings
        return ReadOptions(
            given.columns, given.encoding, given.format, given.me, None, given.map, given.head, given.dates
        )

    @property
    def folder(self) -> Path:
        """The folder with the chunks of tokens."""
        return Path(self.settings.cache) / f"tokens-{self.key}"

    def check_unchanged(self) -> None:
        """Raise UserError if the files are no longer those of these dates, as where a download is still running."""
        if dataclasses.replace(self).dates != self.dates:
            names = one_line(", ".join(source.name for source in self.sources), 120)
            raise UserError(f"{names}: changed while it was read; run the command again when it is complete")

    def renamed_reports(self, reports: Sequence[dict[str, Any]]) -> list[Report]:
        """Restore reports from the cache, with the present names of the files."""
        return [report_of(values, source.name) for values, source in zip(reports, self.sources, strict=True)]


def read_as(settings: CorpusSettings, given: FileSettings) -> CorpusSettings:
    """Return the settings, for files that are read as other settings say."""
    return dataclasses.replace(
        settings, **{field.name: getattr(given, field.name) for field in dataclasses.fields(FileSettings)}
    )


def corpus_files(sources: Sequence[Source], settings: CorpusSettings) -> CorpusFiles:
    """Return the files of a corpus. Raises UserError if a list of words cannot be read or a library is missing."""
    cleaner(settings.clean)
    tokenizer(settings.tokenizer, settings.dictionary)
    word_filter(settings)
    return CorpusFiles(tuple(sources), settings)


def training_files(settings: CorpusSettings) -> CorpusFiles:
    """Return the files to train on; of a folder, an archive or a JSON object with parts, the training part.

    Raises UserError when a file cannot be used.
    """
    return corpus_files(_parts(settings).training, settings)


def left_out(settings: CorpusSettings) -> list[str]:
    """Return the names of the test parts of the files to train on, which are not read."""
    return _parts(settings).left_out


def validation_files(settings: CorpusSettings, validation: str = AUTO) -> CorpusFiles | None:
    """Return the file of --validation FILE, or with auto the validation parts of the files to train on; None without.

    Rules that drop pairs do not apply. Raises UserError when a file cannot be used.
    """
    if validation == NONE:
        return None
    sources = _parts(settings).validation if validation == AUTO else find_sources([validation])
    return corpus_files(sources, without_pair_rules(settings)) if sources else None


def _parts(settings: CorpusSettings) -> Parts:
    return find_parts(settings.data, settings.source_file, settings.target_file)


def without_word_spaces(settings: CorpusSettings, notes: TextIO | None = None) -> CorpusSettings:
    """Return the settings, with the cleaning rule "spaces" if a file has spaces between its Chinese words.

    Some corpora were published so, and nobody types them in a chat. The beginning of each file decides; one line names
    the first such file. `--clean none` adds no rule. notes: where this line goes, None for standard output.
    Raises UserError when a file cannot be used.
    """
    if SPACES in settings.clean or NONE in settings.clean:
        return settings
    for source in training_files(settings).sources:
        if source.kind != "chatterbot" and _is_cut(source, corpus_files([source], settings).options):
            note = f"{source.name}: the spaces between its Chinese words are removed, as in chat (--clean {SPACES})."
            print(note, file=notes)
            return dataclasses.replace(settings, clean=(*settings.clean, SPACES))
    return settings


def _is_cut(source: Source, options: ReadOptions) -> bool:
    text = ""
    with contextlib.closing(read(source, Report(), options)) as pairs:
        for question, answer, _ in itertools.islice(pairs, FIRST_PAIRS):
            text += f"{question}\n{answer}\n"
            if len(text) > EXAMINED:
                break
    return is_cut_into_words(text)


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
        none = pair_hashes(np.zeros(0, np.uint64), np.zeros(0, np.uint8), 0)
        of_chunks = (pair_hashes(*load_hashes(chunk.path), turns) for chunk in self.chunks)
        return PairHashes(*map(np.concatenate, zip(none, *of_chunks, strict=True)))

    def by_chunk(self, mask: Mask) -> list[Mask]:
        """Split a mask of all pairs into one mask for each chunk."""
        return np.split(mask, np.cumsum([chunk.pairs for chunk in self.chunks]))[:-1]

    def tasks(self, mask: Mask, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return (absolute path, part of a mask of all pairs, *arguments) for each chunk."""
        masks = zip(self.chunks, self.by_chunk(mask), strict=True)
        return [(chunk.path.absolute(), part, *arguments) for chunk, part in masks]

    def by_source(self, mask: Mask) -> list[int]:
        """Return the number of pairs of each source that the mask selects."""
        counts = [0] * len(self.reports)
        for chunk, part in zip(self.chunks, self.by_chunk(mask), strict=True):
            counts[chunk.source] += int(part.sum())
        return counts


def tokenise(files: CorpusFiles, pool: Processes | None = None) -> TokenisedFiles:
    """Read, clean and tokenise all pairs in the processes of the pool, or read their tokens from the cache.

    Raises UserError for files that cannot be used, or that change while they are read.
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
    return TokenisedFiles(chunk_files, files.renamed_reports(description["reports"]))


def _write_chunks(files: CorpusFiles, folder: Path, pool: Processes) -> tuple[list[tuple[str, int, int]], list[Report]]:
    """Return (name, source, pairs) of each chunk, and the report of each source."""
    size = sum(size for _, size in files.dates)
    tasks = [(index, source, files, folder.absolute()) for index, source in enumerate(files.sources)]
    chunks = []
    reports = [Report(source.name) for source in files.sources]
    with progress_bar("Tokenising", size, "B") as bar:
        for name, source, pairs, report in pool.in_order(_write_chunk, tasks, size <= SERIAL_BYTES, _read):
            if name:
                reports[source].add(report)
                reports[source].read_bytes = report.read_bytes
            else:  # the counts of the reader come before those of the chunks
                report.add(reports[source])
                reports[source] = report
            if pairs:
                chunks.append((name, source, pairs))
            bar.update(sum(report.read_bytes for report in reports) - bar.n)
    return chunks, reports


def _read(
    index: int, source: Source, files: CorpusFiles, folder: Path
) -> Iterator[tuple[Path, int, list[Pair], int, Report, CorpusSettings]]:
    """Yield the arguments of `_write_chunk` for every chunk of a source; at last the reader's report without pairs."""
    report = Report(source.name)
    for first, pairs in read_in_chunks(source, report, files.options):
        of_chunk = Report(source.name, read_bytes=report.read_bytes)
        yield folder / f"{index:05}-{first:09}.npz", index, pairs, first, of_chunk, files.settings
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
