"""Encoding of the pairs in files, for training, validation and evaluation."""

import dataclasses
import functools
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chatbot.config.corpus import AUTO, NONE, CorpusSettings, EncodeSettings, EncodingSettings
from chatbot.corpus.cache import content_key, key_of, make_once
from chatbot.corpus.chunks import load_chunk
from chatbot.corpus.files import (
    CorpusFiles,
    TokenisedFiles,
    tokenise,
    training_files,
    validation_files,
    without_word_spaces,
)
from chatbot.corpus.pair_ids import NO_PAIRS, Lengths, Mask, lengths_of
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import TRAINING, VALIDATION
from chatbot.corpus.selection import PairHashes, Selection, select
from chatbot.corpus.shards import (
    ShardArrays,
    Shards,
    count_shards,
    dtype_for,
    encode_chunk,
    split_by_shard,
    write_shards,
)
from chatbot.corpus.tokenizer import check_not_pieces, print_unused_words
from chatbot.corpus.vocabulary import Vocabulary, build_vocabulary, load_vocabulary
from chatbot.corpus.workers import BeamPool, Processes, worker_pool
from chatbot.display import pluralize
from chatbot.errors import UserError

# Version of the cached shards. Increase it when a change of the code affects the content of shards or descriptions.
VERSION = 6
# For at most this number of chunks, no worker processes are started, because starting them takes longer.
SERIAL_CHUNKS = 20

VOCABULARY = "vocabulary.txt"
DESCRIPTION = "corpus.json"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Encoded pairs, their vocabulary, and a report on each file."""

    shards: Shards
    vocabulary: Vocabulary
    reports: list[Report]
    pairs: int
    fingerprint: str  # hash of the pairs, their order and their ids


def encode_now(settings: EncodeSettings) -> None:
    """Encode the pairs and store them in the cache for training. Raises UserError if no pair is left."""
    check_not_pieces(settings.corpus)
    corpus_settings = without_word_spaces(settings.corpus)
    print_unused_words(corpus_settings)
    pool = None
    if settings.runner:
        pool = BeamPool(settings.runner, settings.runner_options, Path(settings.corpus.cache))
    corpus = training_set(corpus_settings, settings.encoding, pool=pool)
    print_reports(corpus.reports)
    print(f"Encoded: {pluralize(corpus.pairs, 'pair')}, shards: {len(corpus.shards):,}, in {corpus.shards.folder}")


def training_set(
    settings: CorpusSettings,
    encoding: EncodingSettings,
    vocabulary: Vocabulary | None = None,
    max_length: int = sys.maxsize,
    pool: Processes | None = None,
) -> Corpus:
    """Return the encoded training pairs, from the cache if possible.

    Args:
        settings: Files, cleaning rules and tokenizer.
        encoding: Validation, vocabulary size and history.
        vocabulary: Vocabulary to use; if None, a vocabulary is built from the pairs.
        max_length: Maximum number of tokens in a source with history.
        pool: Worker processes; if None, workers are started if needed.

    Raises:
        UserError: If no pair is left.
    """
    selection = Selection.from_settings(settings)
    if validation := validation_files(settings, encoding.validation):
        selection = dataclasses.replace(selection, held_out=frozenset(tokenise(validation).hashes().pairs.tolist()))
    elif encoding.validation == AUTO:
        selection = dataclasses.replace(selection, part=TRAINING)
    files = training_files(settings)
    return encode(files, selection, vocabulary or encoding.vocabulary_size, encoding.history, max_length, pool)


def validation_set(
    settings: CorpusSettings, encoding: EncodingSettings, vocabulary: Vocabulary, max_length: int = sys.maxsize
) -> Corpus | None:
    """Return the encoded validation pairs, or None if there are none.

    Args:
        settings: Files, cleaning rules and tokenizer.
        encoding: Validation and history.
        vocabulary: Vocabulary of the training pairs.
        max_length: Maximum number of tokens in a source with history.

    Raises:
        UserError: If a file cannot be used.
    """
    if files := validation_files(settings, encoding.validation):
        return encode(files, Selection(), vocabulary, encoding.history, max_length)
    if encoding.validation == NONE:
        return None
    selection = dataclasses.replace(Selection.from_settings(settings), max_reply_frequency=None, part=VALIDATION)
    held_out = encode(training_files(settings), selection, vocabulary, encoding.history, max_length)
    return held_out if held_out.pairs else None


def encode(
    files: CorpusFiles,
    selection: Selection,
    vocabulary: Vocabulary | int,
    turns: int = 0,
    max_length: int = sys.maxsize,
    pool: Processes | None = None,
) -> Corpus:
    """Encode the selected pairs of the files, or load the encoded pairs from the cache.

    Args:
        files: Files of the corpus.
        selection: Rules that drop pairs, such as duplicates.
        vocabulary: Vocabulary to use, or the maximum size of a vocabulary to build from the pairs.
        turns: Maximum number of previous turns in a source.
        max_length: Maximum number of tokens in a source with history.
        pool: Worker processes; if None, workers are started if needed.

    Raises:
        UserError: If no pair is left, except in a validation set, which can be empty.
    """
    folder = corpus_folder(files, selection, vocabulary, turns)
    with make_once(folder) as part:
        if part:
            with worker_pool(pool) as workers:
                _write(part.absolute(), files, selection, vocabulary, turns, workers)
    description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    lengths = Lengths(*(np.asarray(description["lengths"][name], np.int64) for name in ("sides", "counts")))
    loaded = load_vocabulary(folder / VOCABULARY)
    shards = Shards(folder, description["shards"], description["dtype"], lengths)
    if turns:
        shards = dataclasses.replace(shards, first_mark=loaded.first_mark, source_length=max_length)
    reports = files.restore_reports(description["reports"])
    return Corpus(shards, loaded, reports, description["pairs"], description["fingerprint"])


def corpus_folder(files: CorpusFiles, selection: Selection, vocabulary: Vocabulary | int, turns: int = 0) -> Path:
    """Return the cache folder of an encoded corpus. Each source contains at most `turns` previous turns."""
    key = key_of(
        version=VERSION,
        tokens=files.key,
        selection={**dataclasses.asdict(selection), "held_out": sorted(selection.held_out)},
        vocabulary=vocabulary if isinstance(vocabulary, int) else vocabulary.fingerprint(),
        history=turns,
    )
    return files.folder.parent / f"encoded-{key}"


def _write(
    folder: Path, files: CorpusFiles, selection: Selection, vocabulary: Vocabulary | int, turns: int, pool: Processes
) -> None:
    """Write the shards, vocabulary and description of an encoded corpus to a folder."""
    tokenised = tokenise(files, pool)  # the slowest step
    selected = select_pairs(tokenised, tokenised.hashes(turns), selection)
    if isinstance(vocabulary, int):
        vocabulary = build_vocabulary(count_tokens(tokenised, selected, pool), vocabulary, marks=turns > 0)
    (folder / VOCABULARY).write_bytes(vocabulary.content())
    pairs = int(selected.sum())
    shards = count_shards(pairs)
    tasks = tokenised.tasks(selected, folder, shards, turns)
    parts = itertools.chain.from_iterable(pool.in_order(_encode, tasks, len(tasks) <= SERIAL_CHUNKS))
    write_shards(folder, shards, parts)
    lengths = lengths_of(Shards(folder, shards, dtype_for(vocabulary).name, NO_PAIRS))
    description = {
        "fingerprint": key_of(files=[(path.name, content_key(path)) for path in sorted(folder.iterdir())]),
        "shards": shards,
        "dtype": dtype_for(vocabulary).name,
        "pairs": pairs,
        "lengths": {"sides": lengths.sides.tolist(), "counts": lengths.counts.tolist()},
        "reports": [dataclasses.asdict(report) for report in tokenised.reports],
    }
    (folder / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")


def select_pairs(tokenised: TokenisedFiles, hashes: PairHashes, selection: Selection) -> Mask:
    """Return a mask of the selected pairs, with shape [pairs]. Dropped pairs are counted in the reports of their files.

    Raises:
        UserError: If no pair is left, except in a validation set. The message lists the reasons for each file.
    """
    selected, dropped = select(hashes, selection)
    for reason, mask in dropped.items():
        for report, count in zip(tokenised.reports, tokenised.by_source(mask), strict=True):
            if count:
                report.drop(reason, count=count)
    if selected.any() or selection.part == VALIDATION:
        return selected
    reasons = []
    for report in tokenised.reports:
        content = (
            f"{pluralize(report.pairs, 'pair')}, none of them left" if report.pairs else "no question-answer pairs"
        )
        nothing = f"nothing in it is {' or '.join(report.formats)}" if report.formats else "the file is empty"
        reasons.append(f"{report.file}: {content}: {', '.join(report.lines()) or nothing}")
    raise UserError("; ".join(reasons) + ". Check --format, --columns and --clean")


def describe_report(report: Report) -> list[str]:
    """Return the lines of a file's report: its columns, omitted content, notes and cleaning."""
    lines = [f"  {columns}" for columns in report.columns]
    lines += [f"  left out: {line}" for line in report.lines()]
    lines += [f"  note: {line}" for line in report.notes()]
    lines += [f"  --clean {rule} changed {pluralize(count, 'utterance')}" for rule, count in report.changed.items()]
    return lines


def print_reports(reports: Iterable[Report]) -> None:
    """Print the report of each file."""
    for report in reports:
        print(f"{report.file}: {pluralize(report.pairs, 'pair')}", *describe_report(report), sep="\n")


def count_tokens(tokenised: TokenisedFiles, selected: Mask, pool: Processes) -> dict[str, int]:
    """Return the number of occurrences of each token in the selected pairs."""
    totals: Counter[str] = Counter()
    tasks = tokenised.tasks(selected)
    for tokens, counts in pool.in_order(_count, tasks, len(tasks) <= SERIAL_CHUNKS):
        totals.update(dict(zip(tokens, counts.tolist(), strict=True)))
    return totals


def _count(path: Path, selected: Mask) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the distinct tokens in the selected pairs of a chunk, and their counts, [tokens]."""
    chunk = load_chunk(path)
    counts = np.bincount(chunk.rows(selected).joined(), minlength=len(chunk.tokens))
    return list(itertools.compress(chunk.tokens, counts)), counts[counts > 0]


def _encode(path: Path, selected: Mask, folder: Path, shards: int, turns: int) -> list[tuple[int, ShardArrays]]:
    chunk = load_chunk(path)
    return list(
        split_by_shard(encode_chunk(chunk, selected, _vocabulary(folder), turns), chunk.pair_hashes[selected], shards)
    )


@functools.lru_cache(1)
def _vocabulary(folder: Path) -> Vocabulary:
    """Load the vocabulary in a folder. It is cached, so each process loads it only once."""
    return load_vocabulary(folder / VOCABULARY)
