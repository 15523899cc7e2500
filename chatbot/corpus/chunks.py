"""Chunks of some thousand tokenised pairs: the unit of work when a corpus is encoded.

Each chunk numbers its own tokens, so that chunks can be made on any machine, in any order, before the vocabulary is
known.
"""

import dataclasses
import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.pair_ids import Hashes, Mask, Ragged
from chatbot.corpus.reading.conversation import NEW, RESUMED, Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.selection import pair_filter
from chatbot.corpus.tokenizer import Tokenizer, text_of, tokenizer

# Large enough that distinct tokens are a small part of all tokens, small enough to be tokenised within a second. A
# chunk may have up to twice as many, so as to end with a conversation.
PAIRS_PER_CHUNK = 16384


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Tokenised pairs. Rows 2i and 2i + 1 are the question and the answer of pair i.

    The links keep the turns of a conversation: see `corpus/reading/conversation.py` for the turns before a question.
    They never lead to another chunk: the first pair of a chunk is NEW.
    """

    token_text: npt.NDArray[np.uint8]  # the distinct tokens, in UTF-8, with a line break between them
    token_hashes: Hashes  # [tokens]
    ids: npt.NDArray[np.unsignedinteger[Any]]  # [all tokens of all rows] indices of distinct tokens
    lengths: npt.NDArray[np.uint32]  # [2 * pairs]
    text_hashes: Hashes  # [2 * pairs]
    links: npt.NDArray[np.uint8]  # [pairs] NEW, OVERLAP, NEXT or RESUMED

    def __len__(self) -> int:
        return len(self.links)

    @property
    def pair_hashes(self) -> Hashes:
        """The hash of each question and its answer, [pairs]."""
        return mixed(self.text_hashes[::2], self.text_hashes[1::2])

    @functools.cached_property
    def tokens(self) -> list[str]:
        """The distinct tokens."""
        text = self.token_text.tobytes().decode()
        return text.split("\n") if text else []

    def token_characters(self) -> Ragged:
        """Return the code points of each distinct token: [tokens] rows of uint32."""
        points = np.frombuffer(self.token_text.tobytes().decode().encode("utf-32-le"), np.uint32)
        return self._by_token(points)

    def token_bytes(self) -> Ragged:
        """Return the UTF-8 bytes of each distinct token: [tokens] rows of uint8."""
        return self._by_token(self.token_text)

    def _by_token(self, values: npt.NDArray[Any]) -> Ragged:
        """Split the characters or bytes of all tokens at the line breaks between tokens: [tokens] rows."""
        is_break = values == ord("\n")
        ends = np.append(np.flatnonzero(is_break), len(values))[: len(self.token_hashes)]
        return Ragged.from_lengths(values[~is_break], np.diff(ends, prepend=-1) - 1)

    def rows(self, kept: Mask) -> Ragged:
        """Return the alternating questions and answers of the kept pairs: [2 * kept pairs] rows of indices."""
        return Ragged.from_lengths(self.ids, self.lengths).select(np.flatnonzero(np.repeat(kept, 2)))

    def pairs(self, indices: npt.NDArray[np.integer]) -> Iterator[tuple[list[str], list[str]]]:
        """Yield (tokens of the question, tokens of the answer) for the pairs with these indices."""
        ids = self.ids.tolist()
        ends = np.cumsum(self.lengths, dtype=np.int64).tolist()
        for index in indices.tolist():
            begin = ends[2 * index - 1] if index else 0
            middle, end = ends[2 * index], ends[2 * index + 1]
            yield [self.tokens[i] for i in ids[begin:middle]], [self.tokens[i] for i in ids[middle:end]]

    def texts(self, indices: npt.NDArray[np.integer]) -> Iterator[tuple[str, str]]:
        """Yield the cleaned question and answer of the pairs with these indices."""
        return ((text_of(question), text_of(answer)) for question, answer in self.pairs(indices))

    def save(self, path: Path) -> None:
        """Write the chunk; equal chunks give equal bytes."""
        with path.open("wb") as file:
            np.savez(file, **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})


def load_chunk(path: Path) -> Chunk:
    """Read what `Chunk.save` wrote."""
    with np.load(path) as arrays:
        return Chunk(**arrays)


def load_hashes(path: Path) -> tuple[Hashes, npt.NDArray[np.uint8]]:
    """Return the hashes of the texts of a chunk and its links, without reading its tokens."""
    with np.load(path) as arrays:
        return arrays["text_hashes"], arrays["links"]


def tokenise_chunk(pairs: Sequence[Pair], first: int, report: Report, settings: CorpusSettings) -> Chunk:
    """Clean the pairs, drop those that the rules about one pair reject, and tokenise the others, as `clean_pairs`."""
    cleaned = list(clean_pairs(pairs, first, report, settings))
    texts = [text for pair in cleaned for text in pair[:2]]
    tokens, ids, lengths = _numbered(texts, tokenizer(settings.tokenizer, settings.dictionary))
    return Chunk(
        np.frombuffer("\n".join(tokens).encode(), np.uint8),
        hashes_of(tokens),
        ids.astype(np.uint16 if len(tokens) <= 1 << 16 else np.uint32),
        lengths.astype(np.uint32),
        hashes_of(texts),
        np.fromiter((pair[2] for pair in cleaned), np.uint8, len(cleaned)),
    )


def clean_pairs(pairs: Iterable[Pair], first: int, report: Report, settings: CorpusSettings) -> Iterator[Pair]:
    """Yield the cleaned pairs that the rules about one pair keep. The report counts changed and dropped pairs.

    The conversation of a dropped pair goes on with RESUMED. The first pair begins a new one. first: the number of the
    first pair in its file, from 1; the report names pairs by these numbers.
    """
    changed: Counter[str] = Counter()
    clean, reason_to_drop = cleaner(settings.clean, changed), pair_filter(settings)
    gap: int | None = NEW  # the link of a pair after dropped ones; None: no pair was dropped
    for number, (question, answer, link) in enumerate(pairs, start=first):
        question, answer = clean(question), clean(answer)
        if reason := reason_to_drop(question, answer):
            report.drop(reason, f"{report.file}, pair {number:,}")
            gap = NEW if NEW in (gap, link) else RESUMED
            continue
        yield question, answer, link if gap is None or link == NEW else gap
        gap = None
    report.changed = dict(changed)


def hashes_of(texts: Iterable[str]) -> Hashes:
    """Return the 64-bit hash of each text, [texts] uint64."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, map(str.encode, texts)), np.uint64)


def mixed(first: Hashes, second: Hashes) -> Hashes:
    """Return a hash of two hashes in this order, by the multiplications of SplitMix64 (Steele et al., 2014)."""
    mixed = first * np.uint64(0x9E3779B97F4A7C15) + second
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _numbered(
    texts: Sequence[str], tokenise: Tokenizer
) -> tuple[list[str], npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the distinct tokens in order of appearance, the index of every token, and the lengths of the texts.

    One call tokenises all texts, joined by line breaks, which is faster than one call for each text. A line break is
    always a separate token.
    """
    tokens = tokenise("\n".join(texts))
    numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    line_break = numbers["\n"]
    ids = np.fromiter(map(numbers.__getitem__, tokens), np.uint32, len(tokens))
    is_break = ids == line_break
    ends = np.append(np.flatnonzero(is_break), len(ids))[: len(texts)]
    return list(numbers)[1:], ids[~is_break] - 1, np.diff(ends, prepend=-1) - 1


# Counts that are collected before they are summed: some hundred megabytes for a corpus of any size.
AT_ONCE = 4_000_000


@dataclasses.dataclass(frozen=True)
class Counts:
    """Counts of tokens and characters in a chunk or in a whole corpus. Hashes are distinct."""

    hashes: Hashes  # [tokens] of the tokens with more than one character
    counts: npt.NDArray[np.int64]  # [tokens]
    characters: Counter[str]  # in tokens of any length
    single: Counter[str]  # tokens of one character

    def most_frequent(self, number: int, min_count: int) -> Hashes:
        """Return the hashes of the `number` most frequent tokens, and of those as frequent as the last."""
        if number == 0:
            return self.hashes[:0]
        frequent = self.counts >= min_count
        if number < int(frequent.sum()):
            frequent = self.counts >= np.partition(self.counts, -number)[-number]
        return self.hashes[frequent]


def count_chunk(chunk: Chunk, kept: Mask) -> Counts:
    """Count the tokens in the pairs of a chunk that are kept."""
    counts = np.bincount(chunk.rows(kept).joined(), minlength=len(chunk.token_hashes)).astype(np.int64)
    characters = chunk.token_characters()
    by_point = np.bincount(characters.flat, np.repeat(counts, characters.lengths)).astype(np.int64)
    points = np.flatnonzero(by_point)
    longer = (characters.lengths > 1) & (counts > 0)
    single = (characters.lengths == 1) & (counts > 0)
    return Counts(
        chunk.token_hashes[longer],
        counts[longer],
        _by_character(points, by_point[points]),
        _by_character(characters.flat[characters.starts[single]], counts[single]),
    )


def _by_character(points: npt.NDArray[np.integer], counts: npt.NDArray[np.int64]) -> Counter[str]:
    """Return the count of each character. points: [characters] distinct code points."""
    return Counter(dict(zip(map(chr, points.tolist()), counts.tolist(), strict=True)))


def add_up(parts: Iterable[Counts]) -> Counts:
    """Return the counts of all parts together."""
    hashes, counts = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    characters, single = Counter[str](), Counter[str]()
    collected = 0
    for part in parts:
        hashes.append(part.hashes)
        counts.append(part.counts)
        characters.update(part.characters)
        single.update(part.single)
        collected += len(part.hashes)
        if collected > AT_ONCE:
            summed = _summed(hashes, counts)
            hashes, counts, collected = [summed[0]], [summed[1]], 0
    return Counts(*_summed(hashes, counts), characters, single)


def _summed(hashes: Sequence[Hashes], counts: Sequence[npt.NDArray[np.int64]]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Return the distinct hashes and the summed counts of each."""
    distinct, index = np.unique(np.concatenate(hashes), return_inverse=True)
    return distinct, np.bincount(index, np.concatenate(counts), len(distinct)).astype(np.int64)


def token_texts(hashes: Hashes, chunks: Iterable[Path]) -> dict[int, str]:
    """Return the tokens with these hashes, by hash. Each hash must occur in one of the chunks."""
    texts: dict[int, str] = {}
    for path in chunks:
        if len(texts) == len(hashes):
            break
        chunk = load_chunk(path)
        indices = np.flatnonzero(np.isin(chunk.token_hashes, hashes)).tolist()
        texts |= {int(chunk.token_hashes[index]): chunk.tokens[index] for index in indices}
    return texts
