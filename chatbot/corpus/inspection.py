"""Inspection of a corpus before training: a report on lengths, vocabulary and frequent replies."""

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
from chatbot.corpus.dataset import count_tokens, describe_report, select_pairs
from chatbot.corpus.files import (
    CorpusFiles,
    TokenisedFiles,
    excluded_test_parts,
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
from chatbot.corpus.selection import MIN_PAIRS_TO_SPLIT, Selection
from chatbot.corpus.shards import encode_chunk
from chatbot.corpus.tokenizer import check_not_pieces, print_unused_words
from chatbot.corpus.vocabulary import Vocabulary, build_vocabulary
from chatbot.corpus.workers import worker_pool
from chatbot.display import pluralize, visible
from chatbot.flags import flags_for

# For at most this number of chunks, no worker processes are started, because starting them takes longer.
SERIAL_CHUNKS = 6
SAMPLES = 3
TOP_REPLIES = 10
VOCABULARY_SIZES = (4_000, 8_000, 16_000, 32_000, 64_000)
# Fraction of the maximum coverage that the suggested vocabulary reaches, and fraction of the pairs that are at most as
# long as the suggested maximum length.
COVERAGE_FRACTION = 0.97
LENGTH_QUANTILE = 0.99


class File(NamedTuple):
    """The report on a file of the corpus, and the number of its pairs that are selected for training."""

    report: Report
    kept: int  # number of pairs that training would use


@dataclasses.dataclass(frozen=True)
class Measurements:
    """Measurements of a corpus. Lengths are in tokens of the suggested vocabulary, and answers include EOS."""

    files: list[File]
    samples: list[tuple[str, str]]
    lengths: npt.NDArray[np.int64]  # [pairs, 2] length of question and answer
    tokens: int  # number of distinct tokens
    characters: int  # number of distinct characters
    coverage: dict[int, float]  # vocabulary size -> fraction of all tokens that are in the vocabulary
    top_replies: list[tuple[str, int]]  # most frequent replies and their counts
    max_length: int  # suggested --max-length
    vocabulary_size: int  # suggested --vocabulary-size

    @property
    def pairs(self) -> int:
        """Number of selected pairs."""
        return len(self.lengths)

    @property
    def are_few(self) -> bool:
        """Whether training sets no pairs aside for validation, so the chat looks answers up and generates none."""
        return self.pairs < MIN_PAIRS_TO_SPLIT

    @property
    def top_share(self) -> float:
        """Fraction of the pairs whose reply is among the most frequent replies."""
        return sum(count for _, count in self.top_replies) / self.pairs


def inspect(settings: InspectSettings) -> int:
    """Print a report on the files, and return the exit code. No files are left on disk."""
    check_not_pieces(settings.corpus)
    corpus = without_word_spaces(settings.corpus)
    print_unused_words(corpus)
    with temporary_folder() as folder:
        measured = measure(training_files(dataclasses.replace(corpus, cache=str(folder))))
    print("\n".join(report_lines(measured, corpus)))
    if validation := validation_files(corpus):
        print("For validation, not counted above: " + ", ".join(source.name for source in validation.sources))
    if names := excluded_test_parts(corpus):
        print("For tests, not read: " + ", ".join(names))
    if settings.json:
        print("\n".join(json_line(file) for file in measured.files))
    return 1 if settings.fail_on_warnings and warnings(measured, corpus) else 0


def measure(files: CorpusFiles) -> Measurements:
    """Measure a corpus. Raises UserError if no pair is left."""
    with worker_pool() as pool:
        tokenised = tokenise(files, pool)
        hashes = tokenised.hashes()
        selected = select_pairs(tokenised, hashes, Selection.from_settings(files.settings))
        counts = count_tokens(tokenised, selected, pool)
        coverage = _coverage(counts)
        size = next(size for size, covered in coverage.items() if covered >= COVERAGE_FRACTION * max(coverage.values()))
        tasks = tokenised.tasks(selected, build_vocabulary(counts, size))
        lengths = np.concatenate([*pool.in_order(_lengths, tasks, len(tasks) <= SERIAL_CHUNKS)])
    characters = set().union(*counts)
    longest = int(np.quantile(lengths.max(axis=1), LENGTH_QUANTILE, method="inverted_cdf"))
    return Measurements(
        files=[*map(File, tokenised.reports, tokenised.by_source(selected))],
        samples=_texts(tokenised, np.flatnonzero(selected)[:SAMPLES]),
        lengths=lengths,
        tokens=len(characters | counts.keys()),
        characters=len(characters),
        coverage=coverage,
        top_replies=_top_replies(tokenised, hashes.answers, selected),
        max_length=max(2, longest),
        vocabulary_size=size,
    )


def _coverage(counts: Mapping[str, int]) -> dict[int, float]:
    """Return the fraction of all tokens that are in the vocabulary, for several vocabulary sizes."""
    coverage = {}
    candidates = len(build_vocabulary(counts, sys.maxsize))
    total = sum(counts.values())
    for size in VOCABULARY_SIZES:
        vocabulary = build_vocabulary(counts, size)
        coverage[size] = sum(counts.get(token, 0) for token in vocabulary.tokens) / total
        if len(vocabulary) == candidates:
            break
    return coverage


def _lengths(path: Path, selected: Mask, vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """Return the lengths of the selected questions and answers, [pairs, 2]. The length of an answer includes EOS."""
    lengths = encode_chunk(load_chunk(path), selected, vocabulary).lengths[:, [SOURCE, TARGET]].astype(np.int64)
    lengths[:, TARGET] += 1
    return lengths


def _top_replies(tokenised: TokenisedFiles, answer_hashes: Hashes, selected: Mask) -> list[tuple[str, int]]:
    """Return the most frequent replies and their counts."""
    rows = np.flatnonzero(selected)
    _, first, counts = np.unique(answer_hashes[rows], return_index=True, return_counts=True)
    top = np.argsort(-counts, kind="stable")[:TOP_REPLIES]
    answers = [answer for _, answer in _texts(tokenised, rows[first[top]])]
    return list(zip(answers, counts[top].tolist(), strict=True))


def _texts(tokenised: TokenisedFiles, rows: npt.NDArray[np.int64]) -> list[tuple[str, str]]:
    """Return the cleaned question and answer of each pair. `rows` contains the indices of the pairs in the corpus."""
    ends = np.cumsum([chunk.pairs for chunk in tokenised.chunks])
    numbers = np.searchsorted(ends, rows, side="right")  # [rows] chunk that contains each row
    texts: dict[int, tuple[str, str]] = {}
    for number in np.unique(numbers).tolist():
        in_chunk = rows[numbers == number]
        path, _, pairs = tokenised.chunks[number]
        texts |= zip(in_chunk.tolist(), load_chunk(path).texts(in_chunk - (ends[number] - pairs)), strict=True)
    return [texts[row] for row in rows.tolist()]


# Thresholds of the warnings: a fraction of all pairs, a fraction of all replies, and a count.
MANY_DROPPED = 0.1
TOP_REPLIES_SHARE = 0.2
FREQUENT_REPLY = 10
# Reasons for dropped content that cause no warning: settings of the user (prefixes), and text without pairs.
CHOSEN = ("pairs beyond ", "pairs with a blocked ")
NO_PAIRS = (NO_DATA, NOTICES, NO_TEXT, NOT_TEXT, OF_PROGRAMS, FALSE_RESPONSES, NO_SPEECH)
MAX_LENGTH = ModelSettings().max_length


def report_lines(measured: Measurements, settings: CorpusSettings) -> list[str]:
    """Return the lines of the complete report."""
    lines = []
    for file in measured.files:
        report = file.report
        kind = f"{', '.join(report.formats)}; {', '.join(report.charsets)}"
        lines.append(f"{report.file}: {kind}; {pluralize(report.pairs, 'pair')}, {file.kept:,} kept")
        lines += describe_report(report)
    lines += ["", "The first pairs:"]
    lines += [f"  {question} -> {answer}" for question, answer in measured.samples]
    lines += ["", "Lengths in tokens:"]
    for name, side in (("questions", SOURCE), ("replies", TARGET)):
        median, common, longest = np.quantile(
            measured.lengths[:, side], [0.5, LENGTH_QUANTILE, 1], method="inverted_cdf"
        )
        lines.append(f"  {name}: half up to {median}, {LENGTH_QUANTILE:.0%} up to {common}, all up to {longest}")
    if not measured.are_few:  # Look-ups do not depend on the vocabulary.
        tokens = f"{pluralize(measured.tokens, 'different token')}, {measured.characters:,} of them characters"
        lines += ["", f"Vocabulary: {tokens}."]
        lines += ["Tokens outside the vocabulary are spelled in characters, and characters outside it in bytes."]
        sizes = measured.coverage.items()
        lines += [f"  {size:>6,} entries cover {covered:6.1%} of all tokens" for size, covered in sizes]
    if measured.top_replies[0][1] > 1:
        lines += ["", f"The {len(measured.top_replies)} most frequent replies are {measured.top_share:.1%} of all:"]
        lines += [f"  {count:>8,}  {text}" for text, count in measured.top_replies]
    longer = pluralize(int((measured.lengths.max(axis=1) > MAX_LENGTH).sum()), "pair")
    use = "looked up, but not learned" if measured.are_few else "which training drops"
    lines += ["", f"Longer than the default --max-length {MAX_LENGTH}: {longer}, {use}."]
    flags = f"--max-length {measured.max_length} --vocabulary-size {measured.vocabulary_size}"
    if measured.are_few:
        least = f"{MIN_PAIRS_TO_SPLIT:,} pairs"
        lines += [f"Fewer than {least}: without --validation, the chat looks answers up and generates none."]
        flags = f"--max-length {measured.max_length}" if measured.max_length > MAX_LENGTH else ""
    words = [program("train"), flags_for(settings), f"--attempt {_attempt_for(settings)}", flags]
    lines += ["", f"Suggested: {' '.join(filter(None, words))}"]
    lines += [f"Warning: {warning}" for warning in warnings(measured, settings)] or ["No warnings."]
    return list(map(visible, lines))


def _attempt_for(settings: CorpusSettings) -> str:
    """Derive the name of an attempt (a named training run) from the first file.

    The default name is not used, because an attempt with that name may already exist.
    """
    first, *_ = (*settings.data, settings.source_file or "chatterbot")
    name = re.match(r"\w[\w-]{,49}", Path(first).stem)
    return name[0] if name and name[0] != RunSettings.attempt else "mine"


def warnings(measured: Measurements, settings: CorpusSettings) -> list[str]:
    """Return the warnings, including remedies where possible."""
    lines = []
    for file in measured.files:
        dropped = {r: entry.count for r, entry in file.report.dropped.items() if not r.startswith((*CHOSEN, *NO_PAIRS))}
        total = sum(dropped.values())
        if not file.kept:
            lines.append(f"{file.report.file}: no pair is kept; the reasons are listed above")
        elif total > MANY_DROPPED * (file.kept + total):
            reason = max(dropped, key=lambda reason: dropped[reason])
            lines.append(f"{file.report.file}: {total / (file.kept + total):.0%} left out, mostly {reason}")
    limit = max(FREQUENT_REPLY, measured.pairs // 1000)
    repeated = measured.top_share > TOP_REPLIES_SHARE and measured.top_replies[0][1] > limit
    # Phrasings of the same question share an answer, which is no fault where answers are looked up.
    if settings.max_reply_frequency is None and repeated and not measured.are_few:
        lines.append(
            f"{measured.top_share:.0%} of all replies are the same {len(measured.top_replies)}, and a model trained on "
            f"them will repeat them: --max-reply-frequency {limit}"
        )
    return lines


def json_line(file: File) -> str:
    """Return the report on a file as a line of JSON."""
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
