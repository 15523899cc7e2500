"""Counts of the tokens of a whole corpus, without a dictionary of all tokens.

Tokens are counted by their hashes, which are sorted and summed in arrays. Only tokens that may enter the vocabulary
are read as text.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.chunks import Chunk, Hashes, Mask, load_chunk

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
        if len(texts) < len(hashes):
            texts |= texts_in(load_chunk(path), hashes)
    return texts


def texts_in(chunk: Chunk, hashes: Hashes) -> Iterator[tuple[int, str]]:
    """Yield (hash, token) for the tokens of a chunk that have one of these hashes."""
    indices = np.flatnonzero(np.isin(chunk.token_hashes, hashes)).tolist()
    return ((int(chunk.token_hashes[index]), chunk.tokens[index]) for index in indices)
