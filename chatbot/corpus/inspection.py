"""Inspection of a corpus before training: lengths, vocabulary and frequent replies, as text and as JSON."""

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.commands import program
from chatbot.config.corpus import CorpusSettings, InspectSettings
from chatbot.config.model import ModelSettings
from chatbot.config.run import RunSettings
from chatbot.corpus.cache import temporary_folder
from chatbot.corpus.chunks import load_chunk
from chatbot.corpus.dataset import count_tokens, described, kept_pairs
from chatbot.corpus.files import (
    CorpusFiles,
    TokenisedFiles,
    left_out,
    tokenise,
    training_files,
    validation_files,
    without_word_spaces,
)
from chatbot.corpus.pair_ids import SOURCE, TARGET, Hashes, Mask
from chatbot.corpus.reading.lines import FALSE_RESPONSES
from chatbot.corpus.reading.read import NO_DATA
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.subtitles import NO_SPEECH
from chatbot.corpus.reading.turns import NO_TEXT, NOT_TEXT, NOTICES, OF_PROGRAMS
from chatbot.corpus.selection import Selection
from chatbot.corpus.shards import encode_chunk
from chatbot.corpus.tokenizer import check_no_pieces, print_unused_words
from chatbot.corpus.vocabulary import Vocabulary, build_vocabulary
from chatbot.corpus.workers import worker_pool
from chatbot.display import counted, visible
from chatbot.flags import flags_for

# With fewer chunks, one process is faster than starting others.
SERIAL_CHUNKS = 6
SAMPLES = 3
TOP_REPLIES = 10
VOCABULARY_SIZES = (4_000, 8_000, 16_000, 32_000, 64_000)
# The suggested vocabulary covers this share of the largest coverage; the suggested length fits this share of the pairs.
COVERED = 0.97
FITTING = 0.99


class File(NamedTuple):
    """One file of the corpus."""

    report: Report
    kept: int  # pairs that training would use


@dataclasses.dataclass(frozen=True)
class Measurements:
    """The measurements. Lengths are in tokens of the suggested vocabulary, EOS counted in the answers."""

    files: list[File]
    samples: list[tuple[str, str]]
    lengths: npt.NDArray[np.int64]  # [pairs, 2] of question and answer
    tokens: int  # distinct tokens
    characters: int  # distinct characters
    coverage: dict[int, float]  # the share of all tokens in a vocabulary, by its size, up to one with every candidate
    top_replies: list[tuple[str, int]]  # with the number of pairs that have them
    max_length: int  # suggested
    vocabulary_size: int  # suggested

    @property
    def pairs(self) -> int:
        """Pairs that are kept."""
        return len(self.lengths)

    @property
    def top_share(self) -> float:
        """The share of the pairs that have one of the most frequent replies."""
        return sum(count for _, count in self.top_replies) / self.pairs


def inspect(settings: InspectSettings) -> int:
    """Print a report on the files, and return the exit code; no file is left on disk. Raises UserError."""
    check_no_pieces(settings.corpus)
    corpus = without_word_spaces(settings.corpus)
    print_unused_words(corpus)
    with temporary_folder() as folder:
        measured = measure(training_files(dataclasses.replace(corpus, cache=str(folder))))
    print("\n".join(report_lines(measured, corpus)))
    if validation := validation_files(corpus):
        print("For validation, not counted above: " + ", ".join(source.name for source in validation.sources))
    if names := left_out(corpus):
        print("For tests, not read: " + ", ".join(names))
    if settings.json:
        print("\n".join(json_line(file) for file in measured.files))
    return 1 if settings.fail_on_warnings and warnings(measured, corpus) else 0


def measure(files: CorpusFiles) -> Measurements:
    """Measure a corpus. Raises UserError when no pair is left."""
    with worker_pool() as pool:
        tokenised = tokenise(files, pool)
        hashes = tokenised.hashes()
        kept = kept_pairs(tokenised, hashes, Selection.of(files.settings))
        counts = count_tokens(tokenised, kept, pool)
        coverage = _coverage(counts)
        size = next(size for size, covered in coverage.items() if covered >= COVERED * max(coverage.values()))
        tasks = tokenised.tasks(kept, build_vocabulary(counts, size))
        lengths = np.concatenate([*pool.in_order(_lengths, tasks, len(tasks) <= SERIAL_CHUNKS)])
    characters = set().union(*counts)
    longest = int(np.quantile(lengths.max(axis=1), FITTING, method="inverted_cdf"))
    return Measurements(
        files=[*map(File, tokenised.reports, tokenised.by_source(kept))],
        samples=_texts(tokenised, np.flatnonzero(kept)[:SAMPLES]),
        lengths=lengths,
        tokens=len(characters | counts.keys()),
        characters=len(characters),
        coverage=coverage,
        top_replies=_top_replies(tokenised, hashes.answers, kept),
        max_length=max(2, longest),
        vocabulary_size=size,
    )


def _coverage(counts: Mapping[str, int]) -> dict[int, float]:
    """Return what vocabularies of several sizes cover. Sizes beyond the first that has every candidate are left out."""
    coverage = {}
    candidates = len(build_vocabulary(counts, sys.maxsize))
    total = sum(counts.values())
    for size in VOCABULARY_SIZES:
        vocabulary = build_vocabulary(counts, size)
        coverage[size] = sum(counts.get(token, 0) for token in vocabulary.tokens) / total
        if len(vocabulary) == candidates:
            break
    return coverage


def _lengths(path: Path, kept: Mask, vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """Return the lengths of the kept pairs of a chunk, EOS counted in the answers, [pairs, 2]."""
    lengths = encode_chunk(load_chunk(path), kept, vocabulary).lengths[:, [SOURCE, TARGET]].astype(np.int64)
    lengths[:, TARGET] += 1
    return lengths


def _top_replies(tokenised: TokenisedFiles, answer_hashes: Hashes, kept: Mask) -> list[tuple[str, int]]:
    """Return the most frequent replies and the number of pairs that have each."""
    rows = np.flatnonzero(kept)
    _, first, counts = np.unique(answer_hashes[rows], return_index=True, return_counts=True)
    top = np.argsort(-counts, kind="stable")[:TOP_REPLIES]
    answers = [answer for _, answer in _texts(tokenised, rows[first[top]])]
    return list(zip(answers, counts[top].tolist(), strict=True))


def _texts(tokenised: TokenisedFiles, rows: npt.NDArray[np.int64]) -> list[tuple[str, str]]:
    """Return the cleaned text of the pairs with these numbers in the corpus, in this order."""
    ends = np.cumsum([chunk.pairs for chunk in tokenised.chunks])
    numbers = np.searchsorted(ends, rows, side="right")  # [rows] the chunk of each
    texts: dict[int, tuple[str, str]] = {}
    for number in np.unique(numbers).tolist():
        in_chunk = rows[numbers == number]
        path, _, pairs = tokenised.chunks[number]
        texts |= zip(in_chunk.tolist(), load_chunk(path).texts(in_chunk - (ends[number] - pairs)), strict=True)
    return [texts[row] for row in rows.tolist()]


# Thresholds of the warnings, as shares of all pairs or replies.
MANY_DROPPED = 0.1
TOP_REPLIES_SHARE = 0.2
FEW_PAIRS = 1000
FREQUENT_REPLY = 10
# Reasons to drop pairs that the user chose by a flag, and to drop what is no pair of the corpus anyway.
CHOSEN = ("pairs beyond ", "pairs with fewer ", "pairs with more ", "pairs with a blocked ")
NO_PAIRS = (NO_DATA, NOTICES, NO_TEXT, NOT_TEXT, OF_PROGRAMS, FALSE_RESPONSES, NO_SPEECH)
MAX_LENGTH = ModelSettings().max_length


def report_lines(measured: Measurements, settings: CorpusSettings) -> list[str]:
    """Return the whole report, for a terminal."""
    lines = []
    for file in measured.files:
        report = file.report
        kind = f"{', '.join(report.formats)}; {', '.join(report.charsets)}"
        lines.append(f"{report.file}: {kind}; {counted(report.pairs, 'pair')}, {file.kept:,} kept")
        lines += described(report)
    lines += ["", "The first pairs:"]
    lines += [f"  {question} -> {answer}" for question, answer in measured.samples]
    lines += ["", "Lengths in tokens:"]
    for name, side in (("questions", SOURCE), ("replies", TARGET)):
        median, most, longest = np.quantile(measured.lengths[:, side], [0.5, FITTING, 1], method="inverted_cdf")
        lines.append(f"  {name}: half up to {median}, {FITTING:.0%} up to {most}, all up to {longest}")
    lines += [
        "",
        f"Vocabulary: {counted(measured.tokens, 'different token')}, {measured.characters:,} of them characters.",
    ]
    lines += ["Tokens outside the vocabulary are spelled in characters, and characters outside it in bytes."]
    if any(measured.coverage.values()):
        sizes = measured.coverage.items()
        lines += [f"  {size:>6,} entries cover {covered:6.1%} of all tokens" for size, covered in sizes]
    else:
        lines += ["  No token occurs twice, so that all are spelled."]
    lines += ["", f"The {len(measured.top_replies)} most frequent replies are {measured.top_share:.1%} of all:"]
    lines += [f"  {count:>8,}  {text}" for text, count in measured.top_replies]
    longer = int((measured.lengths.max(axis=1) > MAX_LENGTH).sum())
    lines += [
        "",
        f"Longer than the default --max-length {MAX_LENGTH}: {counted(longer, 'pair')}, which training drops.",
    ]
    flags = f"--max-length {measured.max_length} --vocabulary-size {measured.vocabulary_size}"
    words = [program("train"), flags_for(settings), f"--attempt {_attempt_for(settings)}", flags]
    lines += ["", f"Suggested: {' '.join(filter(None, words))}"]
    lines += [f"Warning: {warning}" for warning in warnings(measured, settings)] or ["No warnings."]
    return list(map(visible, lines))


def _attempt_for(settings: CorpusSettings) -> str:
    """Return a name for an attempt, as that of the first file begins: the default one may have learned other pairs."""
    first, *_ = (*settings.data, settings.source_file or "chatterbot")
    name = re.match(r"\w[\w-]{,49}", Path(first).stem)
    return name[0] if name and name[0] != RunSettings.attempt else "mine"


def warnings(measured: Measurements, settings: CorpusSettings) -> list[str]:
    """Return the warnings, each with a remedy where there is one."""
    lines = []
    for file in measured.files:
        dropped = {r: entry.count for r, entry in file.report.dropped.items() if not r.startswith((*CHOSEN, *NO_PAIRS))}
        total = sum(dropped.values())
        if not file.kept:
            lines.append(f"{file.report.file}: no pair is kept; the reasons are listed above")
        elif total > MANY_DROPPED * (file.kept + total):
            reason = max(dropped, key=lambda reason: dropped[reason])
            lines.append(f"{file.report.file}: {total / (file.kept + total):.0%} left out, mostly {reason}")
    if measured.pairs < FEW_PAIRS:
        few = counted(measured.pairs, "pair")
        lines.append(f"only {few}: a model will memorise them; without validation, the chat looks answers up")
    limit = max(FREQUENT_REPLY, measured.pairs // 1000)
    repeated = measured.top_share > TOP_REPLIES_SHARE and measured.top_replies[0][1] > limit
    if settings.max_reply_frequency is None and repeated:
        lines.append(
            f"{measured.top_share:.0%} of all replies are the same {len(measured.top_replies)}, and a model trained on "
            f"them will repeat them: --max-reply-frequency {limit}"
        )
    return lines


def json_line(file: File) -> str:
    """Return one JSON object: file, format, encoding, pairs, kept, dropped by reason, unused by kind."""
    report = file.report
    return json.dumps(
        {
            "file": report.file,
            "format": ", ".join(report.formats),
            "encoding": ", ".join(report.charsets),
            "pairs": report.pairs,
            "kept": file.kept,
            "dropped": {reason: entry.count for reason, entry in report.dropped.items()},
            "unused": {kind: entry.count for kind, entry in report.unused.items()},
        },
        ensure_ascii=False,
    )
