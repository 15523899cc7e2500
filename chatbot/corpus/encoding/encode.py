"""From words to shards of ids, kept on disk: what training, validation and evaluation read."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chatbot.corpus.encoding.cache import cached, content_key, key_of
from chatbot.corpus.encoding.chunks import Hashes, load_chunk
from chatbot.corpus.encoding.counting import Counts, count_tokens, texts_of
from chatbot.corpus.encoding.selection import Mask, Selected, Selection, select
from chatbot.corpus.encoding.shards import (
    Block,
    Shards,
    dtype_for,
    encode_chunk,
    shard_of,
    shards_needed,
    split,
    write_shards,
)
from chatbot.corpus.encoding.vocabulary import (
    LEAST_COUNT,
    Vocabulary,
    build_vocabulary,
    load_vocabulary,
    room_for_words,
)
from chatbot.corpus.encoding.words import Words, named_reports
from chatbot.corpus.encoding.workers import cores, in_order, progress
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

# To be raised whenever the same words and rules give other shards than before.
VERSION = 2
# Fewer are encoded sooner than a second process has started.
FEW_PAIRS = 100_000


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Encoded pairs, what they are encoded with, and what was left out on the way, a report a file."""

    shards: Shards
    vocabulary: Vocabulary
    reports: list[Report]
    pairs: int
    fingerprint: str  # tells whether two corpora are the same pairs, in the same order, in the same ids


def encode(words: Words, rules: Selection, vocabulary: Vocabulary | int) -> Corpus:
    """The pairs that stay under the rules, in the ids of a vocabulary, or of one of this size made from them.

    Raises UserError when no pair stays.
    """
    return kept_corpus(words, rules, vocabulary, lambda folder: _build(folder, words, rules, vocabulary))


def kept_corpus(
    words: Words, rules: Selection, vocabulary: Vocabulary | int, build: Callable[[Path], dict[str, Any]]
) -> Corpus:
    """The corpus from the cache; `build` writes its folder when it is not there, and returns its `description`."""
    name = "encoded-" + key_of(
        version=VERSION,
        words=words.key,
        rules={**dataclasses.asdict(rules), "held_out": sorted(rules.held_out)},
        vocabulary=vocabulary if isinstance(vocabulary, int) else vocabulary.fingerprint(),
    )
    folder, said = cached(words.cache, name, build)
    return Corpus(
        Shards(folder, said["shards"], said["dtype"]),
        load_vocabulary(folder / "vocabulary.txt"),
        named_reports(said["reports"], words.sources),
        said["pairs"],
        said["fingerprint"],
    )


def _build(folder: Path, words: Words, rules: Selection, wanted: Vocabulary | int) -> dict[str, Any]:
    selected = select(lambda: words.hashes("pair_hashes"), lambda: words.hashes("answer_hashes"), rules)
    reports = reports_of(words, selected)
    pairs = sum(int(mask.sum()) for mask in selected.kept)
    if not pairs:
        raise UserError(nothing_left(reports))
    vocabulary = vocabulary_of(words, selected.kept, wanted) if isinstance(wanted, int) else wanted
    vocabulary.save(folder / "vocabulary.txt")
    count = shards_needed(pairs)
    write_shards(folder, count, _blocks(words, selected.kept, folder, count))
    return description(folder, count, vocabulary, pairs, reports)


def description(folder: Path, shards: int, vocabulary: Vocabulary, pairs: int, reports: list[Report]) -> dict[str, Any]:
    """What the manifest says of a folder of shards that is whole."""
    return {
        "fingerprint": key_of(files=[(path.name, content_key(path)) for path in sorted(folder.iterdir())]),
        "shards": shards,
        "dtype": dtype_for(vocabulary).name,
        "pairs": pairs,
        "reports": [dataclasses.asdict(report) for report in reports],
    }


def nothing_left(reports: list[Report]) -> str:
    """Why no pair is left, of each file."""
    return "; ".join(map(_why_nothing, reports)) + ". See docs/data.md for formats and cleaning"


def _why_nothing(report: Report) -> str:
    reasons = ", ".join(report.lines())
    if report.pairs:
        return f"{report.file}: none of its {report.pairs:,} pairs is left: {reasons}"
    return f"{report.file}: no question-answer pairs: {reasons or 'the file is empty'}"


def reports_of(words: Words, selected: Selected) -> list[Report]:
    """What was left out of each file, now with what the selection dropped."""
    reports = words.reports
    for (source, _), dropped in zip(words.chunks, selected.dropped, strict=True):
        for reason, count in dropped.items():
            reports[source].drop(reason, count=count)
    return reports


def vocabulary_of(words: Words, kept: list[Mask], size: int) -> Vocabulary:
    """A vocabulary of this size, made from the pairs that are kept."""
    chunks = [path for _, path in words.chunks]
    counts = count_tokens(chunks, kept)
    return vocabulary_from(counts, texts_of(frequent_hashes(counts, size), chunks), size)


def frequent_hashes(counts: Counts, size: int) -> Hashes:
    """The hashes of the words that may enter a vocabulary of this size."""
    return counts.most_frequent(room_for_words(size, counts.characters), LEAST_COUNT)


def vocabulary_from(counts: Counts, texts: Mapping[int, str], size: int) -> Vocabulary:
    """A vocabulary of this size; texts has the words of `frequent_hashes`."""
    numbers = zip(counts.hashes.tolist(), counts.counts.tolist(), strict=True)
    return build_vocabulary(counts.characters, {texts[h]: count for h, count in numbers if h in texts}, size)


def _blocks(words: Words, kept: list[Mask], folder: Path, shards: int) -> Iterator[tuple[int, Block]]:
    """All pairs that are kept, a chunk after the other, by their shard."""
    pairs = sum(int(mask.sum()) for mask in kept)
    tasks = ((path, mask, folder, shards) for (_, path), mask in zip(words.chunks, kept, strict=True))
    with progress("Encoding", pairs, " pairs") as bar:
        for blocks in in_order(_encode, tasks, cores() if pairs > FEW_PAIRS else 1):
            yield from blocks
            bar.update(sum(len(block.lengths) for _, block in blocks))


def _encode(path: Path, kept: Mask, folder: Path, shards: int) -> list[tuple[int, Block]]:
    """The pairs of a chunk by their shard."""
    chunk = load_chunk(path)
    return list(split(encode_chunk(chunk, kept, _vocabulary(folder)), shard_of(chunk.pair_hashes[kept], shards)))


@functools.cache
def _vocabulary(folder: Path) -> Vocabulary:
    """Read once in each process."""
    return load_vocabulary(folder / "vocabulary.txt")
