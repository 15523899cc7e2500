"""From files to pairs of ids on disk: what training, validation and evaluation read."""

import dataclasses
import functools
import itertools
import json
from collections import defaultdict
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
    by_shard,
    dtype_for,
    encode_chunk,
    shards_needed,
    write_shards,
)
from chatbot.corpus.tokenizer import check_no_pieces, print_unused_words
from chatbot.corpus.vocabulary import Vocabulary, build_vocabulary, load_vocabulary
from chatbot.corpus.workers import BeamPool, Processes, worker_pool
from chatbot.display import counted
from chatbot.errors import UserError

# Increase this whenever the same tokens and selection give other shards, or another description, than before.
VERSION = 6
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


def encode_now(settings: EncodeSettings) -> None:
    """Write the encoded pairs to the cache, where training finds them. Raises UserError."""
    check_no_pieces(settings.corpus)
    corpus_settings = without_word_spaces(settings.corpus)
    print_unused_words(corpus_settings)
    pool = None
    if settings.runner:
        pool = BeamPool(settings.runner, settings.runner_options, Path(settings.corpus.cache))
    corpus = training_set(corpus_settings, settings.encoding, pool=pool)
    print_reports(corpus.reports)
    print(f"Encoded: {counted(corpus.pairs, 'pair')}, shards: {len(corpus.shards):,}, in {corpus.shards.folder}")


def training_set(
    settings: CorpusSettings,
    encoding: EncodingSettings,
    vocabulary: Vocabulary | None = None,
    max_length: int | None = None,
    pool: Processes | None = None,
) -> Corpus:
    """Return the encoded pairs to train on, read from the cache if possible. Raises UserError when none is left.

    vocabulary: None: a new one is built from the pairs. max_length: of the sources with history.
    """
    selection = Selection.of(settings)
    if validation := validation_files(settings, encoding.validation):
        selection = dataclasses.replace(selection, held_out=frozenset(tokenise(validation).hashes().pairs.tolist()))
    elif encoding.validation == AUTO:
        selection = dataclasses.replace(selection, part=TRAINING)
    files = training_files(settings)
    return encode(files, selection, vocabulary or encoding.vocabulary_size, encoding.history, max_length, pool)


def validation_set(
    settings: CorpusSettings, encoding: EncodingSettings, vocabulary: Vocabulary, max_length: int | None = None
) -> Corpus | None:
    """Return the encoded pairs to validate on, or None if there are none. Raises UserError for an unusable file.

    max_length: of the sources with history.
    """
    if files := validation_files(settings, encoding.validation):
        return encode(files, Selection(), vocabulary, encoding.history, max_length)
    if encoding.validation == NONE:
        return None
    selection = dataclasses.replace(Selection.of(settings), max_reply_frequency=None, part=VALIDATION)
    held_out = encode(training_files(settings), selection, vocabulary, encoding.history, max_length)
    return held_out if held_out.pairs else None


def encode(
    files: CorpusFiles,
    selection: Selection,
    vocabulary: Vocabulary | int,
    turns: int = 0,
    max_length: int | None = None,
    pool: Processes | None = None,
) -> Corpus:
    """Encode the selected pairs of the files, or read them from the cache.

    vocabulary: the vocabulary to use, or the maximum size of a new vocabulary that is built from the pairs. turns: the
    maximum number of turns before a question. max_length: of the sources with such turns. pool: None: new processes.

    Raises UserError when no pair is left, except of a validation part, which may be empty.
    """
    folder = corpus_folder(files, selection, vocabulary, turns)
    with make_once(folder) as part:
        if part:
            with worker_pool(pool) as workers:
                _write(part.absolute(), files, selection, vocabulary, turns, workers)
    description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    lengths = Lengths(*(np.asarray(description["lengths"][name], np.int64) for name in ("sides", "counts")))
    chosen = load_vocabulary(folder / VOCABULARY)
    shards = Shards(folder, description["shards"], description["dtype"], lengths)
    if turns:
        shards = dataclasses.replace(shards, first_mark=chosen.first_mark, source_length=max_length)
    reports = files.renamed_reports(description["reports"])
    return Corpus(shards, chosen, reports, description["pairs"], description["fingerprint"])


def corpus_folder(files: CorpusFiles, selection: Selection, vocabulary: Vocabulary | int, turns: int = 0) -> Path:
    """Return the folder of the cache for this corpus. turns: of history."""
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
    """Write the shards, the vocabulary and the description of a corpus into a folder."""
    tokenised = tokenise(files, pool)  # reads, cleans and tokenises all files: most of the time
    kept = kept_pairs(tokenised, tokenised.hashes(turns), selection)
    if isinstance(vocabulary, int):
        vocabulary = build_vocabulary(count_tokens(tokenised, kept, pool), vocabulary, marks=turns > 0)
    (folder / VOCABULARY).write_bytes(vocabulary.content())
    pairs = int(kept.sum())
    shards = shards_needed(pairs)
    tasks = tokenised.tasks(kept, folder, shards, turns)
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


def kept_pairs(tokenised: TokenisedFiles, hashes: PairHashes, selection: Selection) -> Mask:
    """Return the mask of the selected pairs, [pairs], and count the dropped ones in the reports of the files.

    Raises UserError, with the reasons for each file, when no pair is left, except of a validation part.
    """
    kept, dropped = select(hashes, selection)
    for reason, mask in dropped.items():
        for report, count in zip(tokenised.reports, tokenised.by_source(mask), strict=True):
            if count:
                report.drop(reason, count=count)
    if kept.any() or selection.part == VALIDATION:
        return kept
    why = []
    for report in tokenised.reports:
        found = f"{counted(report.pairs, 'pair')}, none of them left" if report.pairs else "no question-answer pairs"
        nothing = f"nothing in it is {' or '.join(report.formats)}" if report.formats else "the file is empty"
        why.append(f"{report.file}: {found}: {', '.join(report.lines()) or nothing}")
    raise UserError("; ".join(why) + ". Check --format, --columns and --clean")


def described(report: Report) -> list[str]:
    """Return lines for a terminal about a file: what was read as pairs, left out, not used and cleaned."""
    lines = [f"  {columns}" for columns in report.columns]
    lines += [f"  left out: {line}" for line in report.lines()]
    lines += [f"  note: {line}" for line in report.notes()]
    lines += [f"  --clean {rule} changed {counted(count, 'utterance')}" for rule, count in report.changed.items()]
    return lines


def print_reports(reports: Iterable[Report]) -> None:
    """Print what was read of each file."""
    for report in reports:
        print(f"{report.file}: {counted(report.pairs, 'pair')}", *described(report), sep="\n")


def count_tokens(tokenised: TokenisedFiles, kept: Mask, pool: Processes) -> dict[str, int]:
    """Return how often each token occurs in the pairs that are kept."""
    numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    totals = np.zeros(0, np.int64)
    tasks = tokenised.tasks(kept)
    for tokens, counts in pool.in_order(_count, tasks, len(tasks) <= SERIAL_CHUNKS):
        indices = np.fromiter(map(numbers.__getitem__, tokens), np.int64, len(tokens))
        totals = np.append(totals, np.zeros(len(numbers) - len(totals), np.int64))
        totals[indices] += counts
    return dict(zip(numbers, totals.tolist(), strict=True))


def _count(path: Path, kept: Mask) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the distinct tokens of the kept pairs of a chunk, and how often each occurs, [tokens]."""
    chunk = load_chunk(path)
    counts = np.bincount(chunk.rows(kept).joined(), minlength=len(chunk.tokens))
    return list(itertools.compress(chunk.tokens, counts)), counts[counts > 0]


def _encode(path: Path, kept: Mask, folder: Path, shards: int, turns: int) -> list[tuple[int, ShardArrays]]:
    chunk = load_chunk(path)
    return list(by_shard(encode_chunk(chunk, kept, _vocabulary(folder), turns), chunk.pair_hashes[kept], shards))


@functools.lru_cache(1)
def _vocabulary(folder: Path) -> Vocabulary:
    """Return the vocabulary in a folder, read once in each process."""
    return load_vocabulary(folder / VOCABULARY)
