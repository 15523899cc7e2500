"""Encoding as an Apache Beam pipeline: the same shards, byte by byte, on any runner that Beam has.

The functions of a chunk are those of the built-in path; Beam does what goes across chunks. Files and cache must be
where every worker sees them.
"""

import dataclasses
import json
import logging
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsDict, AsSingleton, PCollection, TaggedOutput

from chatbot.corpus.encoding.chunks import Chunk, Hashes, Pair, Preparation, cut_chunk
from chatbot.corpus.encoding.counting import Counts, add_up, count_chunk, texts_in
from chatbot.corpus.encoding.encode import (
    Corpus,
    description,
    frequent_hashes,
    kept_corpus,
    nothing_left,
    vocabulary_from,
)
from chatbot.corpus.encoding.selection import DUPLICATE, HELD_OUT, Mask, Selection
from chatbot.corpus.encoding.shards import Block, encode_chunk, shard_of, shards_needed, split, write_shards
from chatbot.corpus.encoding.vocabulary import Vocabulary, load_vocabulary
from chatbot.corpus.encoding.words import Words, in_chunks, named_reports
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import Source
from chatbot.errors import UserError

REPORTS = "reports.json"
READ, CUT = "read", "cut"  # what a report is of

Key = tuple[int, int]  # of a chunk: the number of its source, the number of its first pair


class Place(NamedTuple):
    """Where a pair stands. Places are in the order of the files."""

    source: int
    first: int  # the number of the first pair of its chunk
    row: int


class Candidate(NamedTuple):
    """A pair that may stay. Hashes are written out: Beam's integers have 63 bits and a sign."""

    place: Place
    pair_hash: str
    answer_hash: str


class Marked(NamedTuple):
    """A chunk, and which of its pairs stay."""

    key: Key
    chunk: Chunk
    kept: Mask


def encode_on_beam(words: Words, rules: Selection, size: int, runner: str, options: str) -> Corpus:
    """What `encode` gives, computed by a runner with options of its own. Raises UserError when no pair stays."""
    # Its errors come up as an exception, too, with the workers' tracebacks, of which the last line is wanted.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)

    def build(folder: Path) -> dict[str, Any]:
        try:
            flags = PipelineOptions([f"--runner={runner}", *shlex.split(options)])
            with beam.Pipeline(options=flags) as pipeline:
                _encode(pipeline, words, rules, size, folder.absolute())
        except Exception as error:  # a runner may raise anything
            raise UserError(f"--runner {runner}: {str(error).strip().splitlines()[-1]}") from error
        words.check_unchanged()
        reports = named_reports(json.loads((folder / REPORTS).read_text(encoding="utf-8")), words.sources)
        (folder / REPORTS).unlink()
        pairs = sum(path.stat().st_size for path in folder.glob("*.lengths")) // (3 * 4)
        if not pairs:
            raise UserError(nothing_left(reports))
        write_shards(folder, shards_needed(pairs), [])  # for shards that got no pair
        return description(folder, shards_needed(pairs), load_vocabulary(folder / "vocabulary.txt"), pairs, reports)

    return kept_corpus(words, rules, size, build)


def _encode(pipeline: beam.Pipeline, words: Words, rules: Selection, size: int, folder: Path) -> None:
    """Build the pipeline: files -> chunks -> pairs that stay -> vocabulary -> shards."""
    files = [dataclasses.replace(source, paths=tuple(map(Path.absolute, source.paths))) for source in words.sources]
    sources = pipeline | "Files" >> beam.Create(list(enumerate(files)))
    read = sources | "Read" >> beam.FlatMap(_read, words.columns).with_outputs(READ, main="chunks")
    spread = read.chunks | beam.Reshuffle()
    cut = spread | "Cut words" >> beam.FlatMap(_cut, words.how).with_outputs(CUT, main="chunks")
    candidates = cut.chunks | "Pairs" >> beam.FlatMap(_candidates)
    kept, dropped = _selected(candidates, rules)

    rows = kept | "Rows" >> beam.Map(lambda c: ((c.place.source, c.place.first), c.place.row))
    chunks = {"chunk": cut.chunks, "rows": rows} | beam.CoGroupByKey() | "Masks" >> beam.Map(_with_mask)
    counts = chunks | "Count" >> beam.Map(lambda marked: count_chunk(marked.chunk, marked.kept))
    counts = counts | "Add up" >> beam.CombineGlobally(add_up)
    wanted = counts | "Frequent" >> beam.Map(frequent_hashes, size)
    texts = chunks | "Texts" >> beam.FlatMap(_texts, AsSingleton(wanted)) | "Each text once" >> beam.CombinePerKey(min)
    vocabulary = counts | "Vocabulary" >> beam.Map(_vocabulary, AsDict(texts), size)
    _ = vocabulary | "Save vocabulary" >> beam.Map(lambda made: made.save(folder / "vocabulary.txt"))

    number = kept | beam.combiners.Count.Globally() | "Shards" >> beam.Map(shards_needed)
    blocks = chunks | "Encode" >> beam.FlatMap(_blocks, AsSingleton(vocabulary), AsSingleton(number))
    _ = blocks | beam.GroupByKey() | "Write shards" >> beam.Map(_write_shard, folder)
    parts = (read[READ], cut[CUT]) | "All reports" >> beam.Flatten() | "Reports" >> beam.combiners.ToList()
    losses = dropped | "Losses" >> beam.combiners.ToList()
    names = [source.name for source in files]
    _ = parts | "Write reports" >> beam.Map(_write_reports, AsSingleton(losses), names, folder / REPORTS)


def _read(numbered: tuple[int, Source], columns: tuple[str, ...]) -> Iterator[Any]:
    """(chunk's key, (pairs, name of the source)) of each chunk; the report comes last."""
    number, source = numbered
    report = Report(source.name)
    for first, pairs in in_chunks(source, report, columns):
        yield (number, first), (pairs, source.name)
    yield TaggedOutput(READ, ((number, 0), report))


def _cut(keyed: tuple[Key, tuple[list[Pair], str]], how: Preparation) -> Iterator[Any]:
    key, (pairs, name) = keyed
    chunk, report = cut_chunk(pairs, key[1], name, how)
    yield key, chunk
    yield TaggedOutput(CUT, (key, report))


def _candidates(keyed: tuple[Key, Chunk]) -> Iterator[Candidate]:
    key, chunk = keyed
    hashes = (map(str, hashes.tolist()) for hashes in (chunk.pair_hashes, chunk.answer_hashes))
    return (Candidate(Place(*key, row), *both) for row, both in enumerate(zip(*hashes, strict=True)))


def _selected(candidates: PCollection, rules: Selection) -> tuple[PCollection, PCollection]:
    """(the candidates that stay, ((source, reason), how many do not))."""
    held_out, most = frozenset(map(str, rules.held_out)), rules.max_reply_frequency
    stages = {
        HELD_OUT: beam.Filter(lambda c: c.pair_hash not in held_out),
        DUPLICATE: _first("pair_hash", 1),
        rules.beyond: _first("answer_hash", most),
    }
    asked = {HELD_OUT: bool(held_out), DUPLICATE: rules.duplicates, rules.beyond: most is not None}
    changes = []
    for reason in [reason for reason in stages if asked[reason]]:
        left = candidates | reason >> stages[reason]
        changes.append(candidates | f"{reason}: before" >> beam.Map(_one, reason, 1))
        changes.append(left | f"{reason}: after" >> beam.Map(_one, reason, -1))
        candidates = left
    if not changes:
        changes = [candidates | "No rules" >> beam.FlatMap(lambda c: ())]
    return candidates, tuple(changes) | beam.Flatten() | "Sum of losses" >> beam.CombinePerKey(sum)


def _one(candidate: Candidate, reason: str, sign: int) -> tuple[tuple[int, str], int]:
    return (candidate.place.source, reason), sign


@beam.ptransform_fn
def _first(candidates: PCollection, which: str, most: int | None) -> PCollection:
    """Of the candidates with the same hash the first so many."""
    return (
        candidates
        | beam.Map(lambda c: (getattr(c, which), c))
        | beam.GroupByKey()
        | beam.FlatMapTuple(lambda value, some: sorted(some)[:most])
    )


def _with_mask(grouped: tuple[Key, dict[str, Any]]) -> Marked:
    key, found = grouped
    (chunk,) = found["chunk"]
    kept = np.zeros(len(chunk), np.bool_)
    kept[list(found["rows"])] = True
    return Marked(key, chunk, kept)


def _texts(marked: Marked, wanted: Hashes) -> Iterator[tuple[str, str]]:
    return ((str(value), text) for value, text in texts_in(marked.chunk, wanted))


def _vocabulary(counts: Counts, texts: dict[str, str], size: int) -> Vocabulary:
    return vocabulary_from(counts, {int(value): text for value, text in texts.items()}, size)


def _blocks(marked: Marked, vocabulary: Vocabulary, shards: int) -> Iterator[tuple[int, tuple[Key, Block]]]:
    key, chunk, kept = marked
    for shard, block in split(encode_chunk(chunk, kept, vocabulary), shard_of(chunk.pair_hashes[kept], shards)):
        yield shard, (key, block)


def _write_shard(grouped: tuple[int, Iterable[tuple[Key, Block]]], folder: Path) -> None:
    """Whole, so that a runner may do it twice."""
    shard, parts = grouped
    blocks = [block.bytes_of() for _, block in sorted(parts, key=lambda part: part[0])]
    for ending in Block._fields:
        (folder / f"{shard:05}.{ending}").write_bytes(b"".join(block[ending] for block in blocks))


def _write_reports(
    parts: list[tuple[Key, Report]], losses: list[tuple[tuple[int, str], int]], names: list[str], path: Path
) -> None:
    """One report a source: what the reader found, then what each chunk had, in order, then the losses."""
    reports = [Report(name) for name in names]
    for (source, first), part in sorted(parts, key=lambda part: part[0]):
        if first == 0:
            reports[source] = part
        else:
            reports[source].add(part)
    for (source, reason), count in sorted(losses):
        if count:
            reports[source].drop(reason, count=count)
    path.write_text(json.dumps([dataclasses.asdict(report) for report in reports]), encoding="utf-8")
