"""Encoding as an Apache Beam pipeline: byte for byte the same shards, on every runner of Beam.

Each chunk is processed by the functions of the built-in path; Beam combines the chunks. Every worker needs access to
the files and to the cache.
"""

import dataclasses
import json
import logging
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsDict, AsSingleton, PCollection, TaggedOutput

from chatbot.corpus.cache import make_once
from chatbot.corpus.chunks import Chunk, Counts, add_up, count_chunk, texts_in, tokenise_chunk
from chatbot.corpus.dataset import (
    VOCABULARY,
    Corpus,
    check_not_empty,
    corpus_folder,
    load_corpus,
    vocabulary_from,
    vocabulary_hashes,
    write_description,
)
from chatbot.corpus.files import CorpusFiles, read_in_chunks, renamed_reports
from chatbot.corpus.history import NO_HISTORY, History, pair_hashes
from chatbot.corpus.pair_ids import Hashes, Mask
from chatbot.corpus.reading.files.sources import Source
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.selection import (
    DUPLICATE,
    HELD_OUT,
    IN_VALIDATION_FILE,
    MOST_HELD_OUT,
    TRAINING,
    Preparation,
    Selection,
    limit_of_smallest,
)
from chatbot.corpus.shards import IdTable, ShardArrays, by_shard, encode_chunk, shards_needed, write_shards
from chatbot.corpus.vocabulary import Vocabulary, load_vocabulary
from chatbot.errors import UserError

REPORTS = "reports.json"
READ, TOKENISED = "read", "tokenised"  # the two outputs of reports

Key = tuple[int, int]  # a chunk's key: the index of its source, the number of its first pair


class Position(NamedTuple):
    """The position of a pair. Positions sort in the order of the files."""

    source: int
    first: int  # the number of the first pair of its chunk
    row: int


class Candidate(NamedTuple):
    """A pair that may be kept. Hashes are text of 20 digits, since Beam's integers have 63 bits and a sign."""

    position: Position
    pair_hash: str
    group_hash: str
    answer_hash: str
    example_hash: str


class SelectedChunk(NamedTuple):
    """A chunk, and which of its pairs are kept."""

    key: Key
    chunk: Chunk
    kept: Mask


def encode_on_beam(
    files: CorpusFiles, selection: Selection, size: int, runner: str, options: str, history: History = NO_HISTORY
) -> Corpus:
    """Return the same corpus as `encode`, computed by a Beam runner. options: the runner's flags, as one text.

    Raises UserError if the runner fails, or if no pair is left.
    """
    folder = corpus_folder(files, selection, size, history.turns)
    with make_once(folder) as part:
        if part:
            _run_pipeline(files, selection, size, history.turns, runner, options, part.absolute())
            files.check_unchanged()
            reports = renamed_reports(json.loads((part / REPORTS).read_text(encoding="utf-8")), files.sources)
            (part / REPORTS).unlink()
            pairs = sum(path.stat().st_size for path in part.glob("*.lengths")) // (3 * 4)
            check_not_empty(pairs, reports)
            write_shards(part, shards_needed(pairs), [])  # empty files for shards without pairs
            write_description(part, load_vocabulary(part / VOCABULARY), pairs, reports)
    return load_corpus(folder, files, history)


def _run_pipeline(
    files: CorpusFiles, selection: Selection, size: int, turns: int, runner: str, options: str, folder: Path
) -> None:
    """Write shards, vocabulary and reports. Raises UserError with the last line of the runner's error."""
    # Beam also logs its errors, with the tracebacks of all workers; the exception is enough.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    try:
        with beam.Pipeline(options=PipelineOptions([f"--runner={runner}", *shlex.split(options)])) as pipeline:
            _build_pipeline(pipeline, files, selection, size, turns, folder)
    except Exception as error:  # a runner may raise anything
        raise UserError(f"--runner {runner}: {str(error).strip().splitlines()[-1]}") from error


def _build_pipeline(
    pipeline: beam.Pipeline, files: CorpusFiles, selection: Selection, size: int, turns: int, folder: Path
) -> None:
    """Files -> chunks of tokens -> pairs that are kept -> vocabulary -> shards. turns: of history."""
    absolute = [dataclasses.replace(source, paths=tuple(map(Path.absolute, source.paths))) for source in files.sources]
    sources = pipeline | "Files" >> beam.Create(list(enumerate(absolute)))
    read = sources | "Read" >> beam.FlatMap(_read, files.options).with_outputs(READ, main="chunks")
    spread = read.chunks | beam.Reshuffle()
    tokenise = beam.FlatMap(_tokenise, files.preparation)
    tokenised = spread | "Tokenise" >> tokenise.with_outputs(TOKENISED, main="chunks")
    candidates = tokenised.chunks | "Pairs" >> beam.FlatMap(_candidates, turns)
    kept, dropped = _select(candidates, selection)

    rows = kept | "Rows" >> beam.Map(lambda c: ((c.position.source, c.position.first), c.position.row))
    chunks = {"chunk": tokenised.chunks, "rows": rows} | beam.CoGroupByKey() | "Masks" >> beam.Map(_with_mask)
    counts = chunks | "Count" >> beam.Map(lambda selected: count_chunk(selected.chunk, selected.kept))
    counts = counts | "Add up" >> beam.CombineGlobally(add_up)
    frequent = counts | "Most frequent" >> beam.Map(vocabulary_hashes, size)
    texts = (
        chunks | "Texts" >> beam.FlatMap(_texts, AsSingleton(frequent)) | "Distinct texts" >> beam.CombinePerKey(min)
    )
    vocabulary = counts | "Vocabulary" >> beam.Map(_vocabulary, AsDict(texts), size, turns > 0)
    _ = vocabulary | "Save vocabulary" >> beam.Map(lambda vocabulary: vocabulary.save(folder / VOCABULARY))

    shards = kept | beam.combiners.Count.Globally() | "Shards" >> beam.Map(shards_needed)
    table = vocabulary | "Id table" >> beam.Map(IdTable)
    parts = chunks | "Encode" >> beam.FlatMap(_encode, AsSingleton(table), AsSingleton(shards), turns)
    _ = parts | beam.GroupByKey() | "Write shards" >> beam.Map(_write_shard, folder)
    reports = (read[READ], tokenised[TOKENISED]) | "All reports" >> beam.Flatten()
    reports = reports | "Reports" >> beam.combiners.ToList()
    counts_dropped = dropped | "Dropped" >> beam.combiners.ToList()
    names = [source.name for source in absolute]
    _ = reports | "Write reports" >> beam.Map(_write_reports, AsSingleton(counts_dropped), names, folder / REPORTS)


def _read(numbered: tuple[int, Source], options: ReadOptions) -> Iterator[Any]:
    """Yield (key, (pairs, name of the source)) for each chunk, then the report."""
    index, source = numbered
    report = Report(source.name)
    for first, pairs in read_in_chunks(source, report, options):
        yield (index, first), (pairs, source.name)
    yield TaggedOutput(READ, ((index, 0), report))


def _tokenise(keyed: tuple[Key, tuple[list[Pair], str]], preparation: Preparation) -> Iterator[Any]:
    key, (pairs, name) = keyed
    chunk, report = tokenise_chunk(pairs, key[1], name, preparation)
    yield key, chunk
    yield TaggedOutput(TOKENISED, (key, report))


def _candidates(keyed: tuple[Key, Chunk], turns: int) -> Iterator[Candidate]:
    key, chunk = keyed
    hashes = pair_hashes(chunk.pair_hashes, chunk.question_hashes, chunk.answer_hashes, chunk.links, turns)
    texts = zip(*(map(_text, values.tolist()) for values in hashes), strict=True)
    return (Candidate(Position(*key, row), *of_pair) for row, of_pair in enumerate(texts) if chunk.is_usable(row))


def _text(value: int) -> str:
    """Return a hash as text that sorts like the number."""
    return f"{value:020}"


def _select(candidates: PCollection, selection: Selection) -> tuple[PCollection, PCollection]:
    """Return the candidates that are kept, and ((source, reason), number of dropped pairs)."""
    held_out, most = frozenset(map(_text, selection.held_out)), selection.max_reply_frequency
    filters = {}
    if held_out:
        filters[IN_VALIDATION_FILE] = beam.Filter(lambda c: c.pair_hash not in held_out)
    if selection.duplicates:
        filters[DUPLICATE] = _of_equal("example_hash", lambda equal: sorted(equal)[:1])
    if selection.part is not None:
        assert selection.part == TRAINING, "a validation part is small, and encoded on one machine"
        filters[HELD_OUT] = _training_part()
    if most is not None:
        filters[selection.too_frequent] = _of_equal("answer_hash", lambda equal: sorted(equal)[:most])
    changes = []
    for reason, transform in filters.items():
        kept = candidates | reason >> transform
        changes.append(candidates | f"{reason}: before" >> beam.Map(_change, reason, 1))
        changes.append(kept | f"{reason}: after" >> beam.Map(_change, reason, -1))
        candidates = kept
    if not changes:
        changes = [candidates | "No filters" >> beam.FlatMap(lambda c: ())]
    return candidates, tuple(changes) | beam.Flatten() | "Sum of dropped" >> beam.CombinePerKey(sum)


def _change(candidate: Candidate, reason: str, change: int) -> tuple[tuple[int, str], int]:
    return (candidate.position.source, reason), change


@beam.ptransform_fn
def _training_part(candidates: PCollection) -> PCollection:
    """Keep the candidates that are not held out for validation."""
    groups = candidates | beam.Map(lambda c: c.group_hash)
    pairs = groups | beam.combiners.Count.Globally()
    smallest = groups | beam.combiners.Top.Smallest(MOST_HELD_OUT + 1)
    return candidates | "Not held out" >> beam.Filter(_is_in_training, AsSingleton(smallest), AsSingleton(pairs))


def _is_in_training(candidate: Candidate, smallest: list[str], pairs: int) -> bool:
    limit = limit_of_smallest(np.array(list(map(int, smallest)), np.uint64), pairs)
    return int(candidate.group_hash) >= int(limit)


@beam.ptransform_fn
def _of_equal(
    candidates: PCollection, field: str, kept: Callable[[Iterable[Candidate]], Iterable[Candidate]]
) -> PCollection:
    """Keep what `kept` returns of the candidates whose hashes in this field are equal."""
    return (
        candidates
        | beam.Map(lambda c: (getattr(c, field), c))
        | beam.GroupByKey()
        | beam.FlatMapTuple(lambda _, equal: kept(equal))
    )


def _with_mask(grouped: tuple[Key, dict[str, Any]]) -> SelectedChunk:
    key, values = grouped
    (chunk,) = values["chunk"]
    kept = np.zeros(len(chunk), np.bool_)
    kept[list(values["rows"])] = True
    return SelectedChunk(key, chunk, kept)


def _texts(selected: SelectedChunk, hashes: Hashes) -> Iterator[tuple[str, str]]:
    return ((str(value), text) for value, text in texts_in(selected.chunk, hashes))


def _vocabulary(counts: Counts, texts: dict[str, str], size: int, marks: bool) -> Vocabulary:
    return vocabulary_from(counts, {int(value): text for value, text in texts.items()}, size, marks)


def _encode(
    selected: SelectedChunk, table: IdTable, shards: int, turns: int
) -> Iterator[tuple[int, tuple[Key, ShardArrays]]]:
    key, chunk, kept = selected
    for shard, arrays in by_shard(encode_chunk(chunk, kept, table, turns), chunk.pair_hashes[kept], shards):
        yield shard, (key, arrays)


def _write_shard(grouped: tuple[int, Iterable[tuple[Key, ShardArrays]]], folder: Path) -> None:
    """Write the complete files of a shard, so that a runner may repeat it."""
    shard, parts = grouped
    in_order = [arrays for _, arrays in sorted(parts, key=lambda part: part[0])]
    for name in ShardArrays._fields:
        content = b"".join(getattr(arrays, name).tobytes() for arrays in in_order)
        (folder / f"{shard:05}.{name}").write_bytes(content)


def _write_reports(
    parts: list[tuple[Key, Report]], dropped: list[tuple[tuple[int, str], int]], names: list[str], path: Path
) -> None:
    """Write one report for each source: the reader's counts, those of the chunks in order, and the dropped pairs."""
    reports = [Report(name) for name in names]
    for (source, first), part in sorted(parts, key=lambda part: part[0]):
        if first == 0:
            reports[source] = part
        else:
            reports[source].add(part)
    for (source, reason), count in sorted(dropped):
        if count:
            reports[source].drop(reason, count=count)
    path.write_text(json.dumps([dataclasses.asdict(report) for report in reports]), encoding="utf-8")
