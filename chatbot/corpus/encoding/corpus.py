"""From files to encoded pairs on disk: what training, validation and evaluation read."""

import copy
import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from chatbot.corpus.encoding.cache import content_key, key_of, make_once
from chatbot.corpus.encoding.chunks import Hashes, Mask, load_chunk
from chatbot.corpus.encoding.counting import Counts, add_up, count_chunk, token_texts
from chatbot.corpus.encoding.history import NO_HISTORY, History
from chatbot.corpus.encoding.ids import IdTable, encode_chunk
from chatbot.corpus.encoding.lengths import Lengths
from chatbot.corpus.encoding.selection import VALIDATION, Selection, select
from chatbot.corpus.encoding.shards import (
    ShardArrays,
    Shards,
    by_shard,
    count_lengths,
    dtype_for,
    shards_needed,
    write_shards,
)
from chatbot.corpus.encoding.tokenised import CorpusFiles, TokenisedFiles, renamed_reports, tokenise
from chatbot.corpus.encoding.vocabulary import (
    MIN_COUNT,
    Vocabulary,
    build_vocabulary,
    load_vocabulary,
    longer_token_capacity,
)
from chatbot.corpus.encoding.workers import in_order, progress_bar, worker_pool
from chatbot.corpus.reading.display import counted
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

# Increase this whenever the same tokens and selection give other shards, or another description, than before.
VERSION = 5
# Fewer chunks are counted and encoded in this process, before worker processes would have started.
SERIAL_CHUNKS = 20

VOCABULARY = "vocabulary.txt"
DESCRIPTION = "corpus.json"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Encoded pairs, their vocabulary, and for each file a report of what was read and dropped."""

    shards: Shards
    vocabulary: Vocabulary
    reports: list[Report]
    pairs: int
    fingerprint: str  # equal for corpora with the same pairs, order and ids


def encode(
    files: CorpusFiles, selection: Selection, vocabulary: Vocabulary | int, history: History = NO_HISTORY
) -> Corpus:
    """Encode the selected pairs of the files, or read them from the cache.

    Raises UserError when no pair is left, except of a validation part, which may be empty.

    vocabulary: the vocabulary to use, or the maximum size of a new vocabulary that is built from the pairs.
    """
    turns = history.turns
    folder = corpus_folder(files, selection, vocabulary, turns)
    with make_once(folder) as part:
        if part:
            with worker_pool() as pool:
                tokenised = tokenise(files, pool)  # reads, cleans and tokenises all files: most of the time
                kept, dropped = select(tokenised.hashes(turns), selection, tokenised.usable())
                reports = complete_reports(tokenised, dropped)
                if selection.part != VALIDATION:
                    check_not_empty(int(kept.sum()), reports)
                if isinstance(vocabulary, int):
                    counts = count_tokens(tokenised, kept, pool)
                    vocabulary = vocabulary_of_counts(tokenised, counts, vocabulary, marks=turns > 0)
                vocabulary.save(part / VOCABULARY)
                shards = shards_needed(int(kept.sum()))
                encoded = _encoded(tokenised, kept, part, shards, turns, pool)
                write_shards(part, shards, encoded)
                write_description(part, vocabulary, int(kept.sum()), reports)
    return load_corpus(folder, files, history)


def corpus_folder(files: CorpusFiles, selection: Selection, vocabulary: Vocabulary | int, turns: int = 0) -> Path:
    """Return the folder of the cache for this corpus. turns: of history."""
    selected = {**dataclasses.asdict(selection), "held_out": sorted(selection.held_out)}
    key = key_of(
        version=VERSION,
        tokens=files.key,
        selection=selected,
        vocabulary=vocabulary if isinstance(vocabulary, int) else vocabulary.fingerprint(),
        **({"history": turns} if turns else {}),
    )
    return files.cache / f"encoded-{key}"


def write_description(folder: Path, vocabulary: Vocabulary, pairs: int, reports: Sequence[Report]) -> None:
    """Add the description that `load_corpus` reads to a folder of shards and their vocabulary."""
    lengths = count_lengths(folder, shards_needed(pairs))
    description = {
        "fingerprint": key_of(files=[(path.name, content_key(path)) for path in sorted(folder.iterdir())]),
        "shards": shards_needed(pairs),
        "dtype": dtype_for(vocabulary).name,
        "pairs": pairs,
        "lengths": {"sides": lengths.sides.tolist(), "counts": lengths.counts.tolist()},
        "reports": [dataclasses.asdict(report) for report in reports],
    }
    (folder / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")


def load_corpus(folder: Path, files: CorpusFiles, history: History = NO_HISTORY) -> Corpus:
    """Load the corpus in a folder of the cache. files: for the present names of the files."""
    description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    lengths = Lengths(*(np.asarray(description["lengths"][name], np.int64) for name in ("sides", "counts")))
    vocabulary = load_vocabulary(folder / VOCABULARY)
    shards = Shards(folder, description["shards"], description["dtype"], lengths)
    if history.turns:
        shards = dataclasses.replace(shards, first_mark=vocabulary.first_mark, source_length=history.max_length)
    return Corpus(
        shards,
        vocabulary,
        renamed_reports(description["reports"], files.sources),
        description["pairs"],
        description["fingerprint"],
    )


def complete_reports(tokenised: TokenisedFiles, dropped: Mapping[str, Mask]) -> list[Report]:
    """Return the reports of the files, with the pairs that the selection dropped, by reason."""
    reports = copy.deepcopy(tokenised.reports)
    for reason, mask in dropped.items():
        for report, count in zip(reports, tokenised.by_source(mask), strict=True):
            if count:
                report.drop(reason, count=count)
    return reports


def check_not_empty(pairs: int, reports: Sequence[Report]) -> None:
    """Raise UserError when no pair is left, with the reasons for each file."""
    if not pairs:
        raise UserError("; ".join(map(_why_empty, reports)) + ". See docs/data.md for formats and cleaning")


def _why_empty(report: Report) -> str:
    reasons = ", ".join(report.lines())
    if report.pairs:
        return f"{report.file}: {counted(report.pairs, 'pair')}, none of them left: {reasons}"
    nothing = f"nothing in it is {' or '.join(report.formats)}" if report.formats else "the file is empty"
    return f"{report.file}: no question-answer pairs: {reasons or nothing}"


def count_tokens(tokenised: TokenisedFiles, kept: Mask, pool: ProcessPoolExecutor) -> Counts:
    """Count the tokens of the pairs that are kept."""
    tasks = zip((chunk.path for chunk in tokenised.chunks), tokenised.by_chunk(kept), strict=True)
    return add_up(in_order(_count, tasks, pool if len(tokenised.chunks) > SERIAL_CHUNKS else None))


def vocabulary_of_counts(tokenised: TokenisedFiles, counts: Counts, size: int, marks: bool = False) -> Vocabulary:
    """Return a vocabulary of at most this size, built from the counted tokens. marks: whether to add MARKS."""
    texts = token_texts(vocabulary_hashes(counts, size), (chunk.path for chunk in tokenised.chunks))
    return vocabulary_from(counts, texts, size, marks)


def vocabulary_hashes(counts: Counts, size: int) -> Hashes:
    """Return the hashes of the longer tokens that may enter a vocabulary of this size."""
    return counts.most_frequent(longer_token_capacity(size, counts.characters), MIN_COUNT)


def vocabulary_from(counts: Counts, texts: Mapping[int, str], size: int, marks: bool = False) -> Vocabulary:
    """Return a vocabulary of at most this size. texts: the tokens of `vocabulary_hashes`, by hash."""
    by_hash = zip(counts.hashes.tolist(), counts.counts.tolist(), strict=True)
    return build_vocabulary(counts.characters, {texts[h]: count for h, count in by_hash if h in texts}, size, marks)


def _encoded(
    tokenised: TokenisedFiles, kept: Mask, folder: Path, shards: int, turns: int, pool: ProcessPoolExecutor
) -> Iterator[tuple[int, ShardArrays]]:
    """Yield (shard, pairs) for the kept pairs, chunk by chunk."""
    masks = tokenised.by_chunk(kept)
    tasks = ((chunk.path, mask, folder, shards, turns) for chunk, mask in zip(tokenised.chunks, masks, strict=True))
    with progress_bar("Encoding", int(kept.sum()), " pairs") as bar:
        for parts in in_order(_encode, tasks, pool if len(masks) > SERIAL_CHUNKS else None):
            yield from parts
            bar.update(sum(len(arrays.lengths) for _, arrays in parts))


def _count(path: Path, kept: Mask) -> Counts:
    return count_chunk(load_chunk(path), kept)


def _encode(path: Path, kept: Mask, folder: Path, shards: int, turns: int) -> list[tuple[int, ShardArrays]]:
    chunk = load_chunk(path)
    return list(by_shard(encode_chunk(chunk, kept, _id_table(folder), turns), chunk.pair_hashes[kept], shards))


@functools.lru_cache(1)
def _id_table(folder: Path) -> IdTable:
    """Return the id table of the vocabulary in a folder, read once in each process."""
    return IdTable(load_vocabulary(folder / VOCABULARY))
