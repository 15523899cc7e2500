"""What a corpus is like, measured before anything is trained: lengths, vocabulary, repetition."""

import dataclasses
import re
import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from chatbot.config.corpus import TextSettings
from chatbot.corpus.encoding.chunks import Hashes, load_chunk
from chatbot.corpus.encoding.counting import Counts, count_tokens
from chatbot.corpus.encoding.encode import FEW_PAIRS, nothing_left, reports_of, vocabulary_of
from chatbot.corpus.encoding.selection import Mask, Selection, occurrences, select
from chatbot.corpus.encoding.shards import SOURCE, TARGET, encode_chunk
from chatbot.corpus.encoding.vocabulary import LEAST_COUNT, Vocabulary, room_for_words
from chatbot.corpus.encoding.words import Words
from chatbot.corpus.encoding.workers import cores, in_order, progress
from chatbot.corpus.reading.report import Report
from chatbot.corpus.text.tokenizer import SPACE
from chatbot.errors import UserError

SAMPLES = 3
TOP_REPLIES = 10
SIZES = (4_000, 8_000, 16_000, 32_000, 64_000)  # of vocabularies
# A vocabulary is suggested that covers this share of what any could, a length that this share of all pairs fits.
COVERED, FITTING = 0.97, 0.99

_NOT_SAID = re.compile(r"[\W_]+")
_AGAIN = re.compile(r"(\D)\1{2,}")  # 哈哈哈哈 says what 哈哈 says


@dataclasses.dataclass(frozen=True)
class File:
    """One file's share of the corpus."""

    report: Report
    kept: int  # pairs that training would get


@dataclasses.dataclass(frozen=True)
class Findings:
    """All that is measured. Lengths are in tokens of the suggested vocabulary, EOS counted in the answers."""

    files: list[File]
    samples: list[tuple[str, str]]
    lengths: npt.NDArray[np.int64]  # [pairs, 2] of question and answer
    words: int  # different tokens
    characters: int  # different characters
    coverage: dict[int, float]  # share of all tokens that a vocabulary of this size has whole
    top_replies: list[tuple[str, int]]  # with the pairs that have them
    spaced: float  # share of the words that begin with a Chinese character that stand after a space
    near_duplicates: int  # pairs that another says with other punctuation, case or repeated characters
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


def inspect(words: Words, settings: TextSettings) -> Findings:
    """Measure the words of a corpus. Raises UserError when there is no pair to measure."""
    rules = Selection("duplicates" in settings.clean, settings.max_reply_frequency)
    selected = select(lambda: words.hashes("pair_hashes"), lambda: words.hashes("answer_hashes"), rules)
    reports, kept = reports_of(words, selected), selected.kept
    pairs = [0] * len(reports)
    for (source, _), mask in zip(words.chunks, kept, strict=True):
        pairs[source] += int(mask.sum())
    if not sum(pairs):
        raise UserError(nothing_left(reports))
    counts = count_tokens([path for _, path in words.chunks], kept)
    coverage = _coverage(counts)
    size = next(size for size, share in coverage.items() if share >= COVERED * max(coverage.values()))
    vocabulary = vocabulary_of(words, kept, size)
    workers = cores() if sum(pairs) > FEW_PAIRS else 1
    tasks = ((path, mask, vocabulary) for (_, path), mask in zip(words.chunks, kept, strict=True))
    measured = []
    with progress("Measuring", sum(pairs), " pairs") as bar:
        for part in in_order(_measure, tasks, workers):
            measured.append(part)
            bar.update(len(part.lengths))
    lengths = np.concatenate([part.lengths for part in measured])
    folded = np.concatenate([part.folded for part in measured])
    longest = int(np.quantile(lengths.max(axis=1), FITTING, method="inverted_cdf"))
    return Findings(
        files=[File(report, count) for report, count in zip(reports, pairs, strict=True)],
        samples=_samples(words, kept),
        lengths=lengths,
        words=len(counts.counts) + len(counts.characters),
        characters=len(counts.characters),
        coverage=coverage,
        top_replies=_top_replies(words, kept),
        spaced=sum(part.spaced for part in measured) / max(1, sum(part.chinese for part in measured)),
        near_duplicates=int((occurrences(folded) > 0).sum()),
        max_length=max(2, longest),
        vocabulary_size=size,
    )


def _coverage(counts: Counts) -> dict[int, float]:
    """The share of all tokens that vocabularies of several sizes have whole."""
    enough = np.sort(counts.counts[counts.counts >= LEAST_COUNT])[::-1]
    whole = np.concatenate([[0], np.cumsum(enough)])  # [words + 1] of the most frequent so many
    total = counts.single + int(counts.counts.sum())
    rooms = {size: min(len(enough), room_for_words(size, counts.characters)) for size in SIZES}
    return {size: (counts.single + int(whole[room])) / total for size, room in rooms.items()}


class _Measured(NamedTuple):
    """What is found in a chunk."""

    lengths: npt.NDArray[np.int64]  # [pairs, 2]
    folded: Hashes  # [pairs] which near duplicates share
    chinese: int  # tokens that begin with a Chinese character
    spaced: int  # those of them that stand after a space


def _measure(path: Path, kept: Mask, vocabulary: Vocabulary) -> _Measured:
    chunk = load_chunk(path)
    lengths = encode_chunk(chunk, kept, vocabulary).lengths[:, [SOURCE, TARGET]].astype(np.int64)
    lengths[:, TARGET] += 1
    texts = (f"{_folded(question)}\n{_folded(answer)}" for question, answer in chunk.texts(np.nonzero(kept)[0]))
    hashes = np.fromiter((xxhash.xxh3_64_intdigest(text.encode()) for text in texts), np.uint64, len(lengths))
    after_space = np.array([token.startswith(SPACE) for token in chunk.tokens], np.bool_)
    chinese = np.array([token.lstrip(SPACE)[:1] >= "\u4e00" for token in chunk.tokens], np.bool_)
    ids = chunk.ids
    return _Measured(lengths, hashes, int(chinese[ids].sum()), int((chinese & after_space)[ids].sum()))


def _folded(text: str) -> str:
    """What is said, however it is written. A text of punctuation alone stays as it is."""
    said = _NOT_SAID.sub("", unicodedata.normalize("NFKC", text).casefold())
    return _AGAIN.sub(r"\1\1", said or text)


def _samples(words: Words, kept: list[Mask]) -> list[tuple[str, str]]:
    """The first pairs."""
    found: list[tuple[str, str]] = []
    for (_, path), mask in zip(words.chunks, kept, strict=True):
        found += load_chunk(path).texts(np.nonzero(mask)[0][: SAMPLES - len(found)])
        if len(found) == SAMPLES:
            break
    return found


def _top_replies(words: Words, kept: list[Mask]) -> list[tuple[str, int]]:
    """The most frequent replies and how many pairs have each."""
    hashes = [hashes[mask] for hashes, mask in zip(words.hashes("answer_hashes"), kept, strict=True)]
    values, counts = np.unique(np.concatenate(hashes), return_counts=True)
    top = np.argsort(-counts, kind="stable")[:TOP_REPLIES]
    wanted = dict(zip(values[top].tolist(), counts[top].tolist(), strict=True))
    found: dict[int, str] = {}
    for (_, path), mask, some in zip(words.chunks, kept, hashes, strict=True):
        first = [int(np.argmax(some == value)) for value in wanted if value not in found and (some == value).any()]
        if first:
            replies = [answer for _, answer in load_chunk(path).texts(np.nonzero(mask)[0][first])]
            found |= dict(zip(some[first].tolist(), replies, strict=True))
        if len(found) == len(wanted):
            break
    return [(found[value], count) for value, count in wanted.items()]
