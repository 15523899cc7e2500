"""Similarity of texts by the characters that they share. It needs no trained model."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.vocabulary import code_points

Numbers = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

# The parameters of BM25, as in Lucene.
K1 = 1.5
B = 0.75
# Texts are counted in blocks, which bound the memory; the number of a text within its block has 16 bits.
BLOCK = 1 << 16
# A code point has 21 bits, and a pair of them, as a number, 42.
POINT_BITS = 21
GRAM_BITS = np.uint64(42)
# `nearest` reads as many occurrences of the rarest grams of a query, and of the others only those in as many texts.
OCCURRENCES = 1 << 17
CANDIDATES = 1000


@dataclasses.dataclass(frozen=True)
class CharacterIndex:
    """Scores texts by the characters and pairs of neighbouring characters that they share with a query.

    The score is BM25 (Robertson and Zaragoza, 2009). Gram i, a character or a pair, is in the texts
    `texts[starts[i] : starts[i + 1]]`, and adds the `weights` at the same positions to their scores. Spaces do not
    count. Any thread may use it.
    """

    size: int  # number of texts
    mean_length: float  # of a text, in grams
    grams: npt.NDArray[np.uint64]  # [grams] the distinct ones, ascending
    starts: Numbers  # [grams + 1]
    texts: npt.NDArray[np.int32]  # [occurrences] ascending for each gram
    weights: Scores  # [occurrences]

    def scores(self, query: str) -> Scores:
        """Return the score of each text, [texts], at least 0; 0 for a text that shares no character with the query."""
        return self._sums(self._occurrences(query))

    def nearest(self, query: str, number: int) -> tuple[Numbers, Scores]:
        """Return the numbers of the texts with the best scores, the best first, and their scores, [texts] each.

        There are at most `number`, and none that shares no character with the query; of equal scores, the first texts.
        Among millions of texts, one that shares only frequent characters with the query may be missed.
        """
        occurrences = sorted(self._occurrences(query), key=lambda part: len(part.texts))
        ends = np.cumsum([len(part.texts) for part in occurrences])
        rare = max(1, int(np.searchsorted(ends, OCCURRENCES, side="right")))
        scores = self._sums(occurrences[:rare])
        texts = np.flatnonzero(scores > 0).astype(np.int32)
        scores = scores[texts]
        if rare < len(occurrences):
            best = _largest(scores, max(number, CANDIDATES))
            texts = texts[best]
            scores = scores[best]
            for part in occurrences[rare:]:
                positions = np.searchsorted(part.texts, texts).clip(max=len(part.texts) - 1)
                scores += np.where(part.texts[positions] == texts, part.weights[positions], 0)
        best = _largest(scores, number)
        best = best[np.argsort(-scores[best], kind="stable")]
        return texts[best].astype(np.int64), scores[best]

    def weighed(self, texts: Sequence[str]) -> list["WeighedText"]:
        """Return the distinct grams of any texts, weighed by their rarity in the texts of the index."""
        grams, numbers = _grams(texts)
        keys = np.sort(numbers.astype(np.uint64) << GRAM_BITS | grams)  # by text, then by gram
        keys = keys[np.flatnonzero(np.diff(keys, prepend=~keys[:1]))]  # np.unique takes several times as long
        numbers = (keys >> GRAM_BITS).astype(np.int64)
        grams = keys & ((np.uint64(1) << GRAM_BITS) - np.uint64(1))
        begins, ends = (np.searchsorted(self.grams, grams, side) for side in ("left", "right"))
        weights = _rarity(self.starts[ends] - self.starts[begins], self.size)  # most, for one that no text has
        totals = np.bincount(numbers, weights, len(texts)).tolist()
        bounds = np.searchsorted(numbers, np.arange(len(texts) + 1)).tolist()
        parts = itertools.starmap(slice, itertools.pairwise(bounds))
        return [WeighedText(grams[part], weights[part], total) for part, total in zip(parts, totals, strict=True)]

    def _occurrences(self, query: str) -> list["_Occurrences"]:
        """Return where each character and pair of a query occurs, repeated ones several times."""
        grams, _ = _grams([query])
        indices = np.searchsorted(self.grams, grams).tolist()
        parts = [slice(*self.starts[i : i + 2]) for i in indices]
        return [
            _Occurrences(self.texts[part], self.weights[part])
            for gram, i, part in zip(grams, indices, parts, strict=True)
            if i < len(self.grams) and self.grams[i] == gram
        ]

    def _sums(self, occurrences: Sequence["_Occurrences"]) -> Scores:
        sums = np.zeros(self.size, np.float32)
        for part in occurrences:
            np.add.at(sums, part.texts, part.weights)
        return sums


class WeighedText(NamedTuple):
    """The distinct characters of a text, and pairs of neighbouring ones, with the weight of each."""

    grams: npt.NDArray[np.uint64]  # ascending
    weights: Floats
    total: float


def similarities(query: WeighedText, texts: Sequence[WeighedText]) -> Floats:
    """Return the similarity of each text, of at least one, to a query, from 0 to 1 for the same characters: [texts].

    It is the Dice coefficient of their distinct characters and pairs, by weight.
    """
    grams = np.concatenate([text.grams for text in texts])
    weights = np.concatenate([text.weights for text in texts])
    numbers = np.repeat(np.arange(len(texts)), [len(text.grams) for text in texts])
    begins, ends = (np.searchsorted(query.grams, grams, side) for side in ("left", "right"))
    shared = np.bincount(numbers, weights * (begins < ends), len(texts))
    totals = query.total + np.array([text.total for text in texts])
    return 2 * shared / np.maximum(totals, np.finfo(float).tiny)


def _rarity(frequencies: npt.NDArray[np.integer], size: int) -> Floats:
    """Return the weight of grams by the number of texts that have them, as in Lucene. size: number of texts."""
    return np.log1p((size - frequencies + 0.5) / (frequencies + 0.5))


def _saturation(counts: npt.NDArray[np.integer], length: Floats | float) -> Floats:
    """Return the weight of a gram in a text that has it so often. length: of the text, by the mean length."""
    return counts / (counts + K1 * (1 - B + B * length))


def _largest(scores: Scores, number: int) -> Numbers:
    """Return the indices of the largest scores, ascending; of equal scores, those of the first."""
    if len(scores) <= number:
        return np.arange(len(scores))
    least = np.partition(scores, -number)[-number]
    above = np.flatnonzero(scores > least)
    return np.sort(np.append(above, np.flatnonzero(scores == least)[: number - len(above)]))


class _Occurrences(NamedTuple):
    """The texts that have a gram, ascending, and what it adds to their scores."""

    texts: npt.NDArray[np.int32]
    weights: Scores


class _Block(NamedTuple):
    """The grams of some texts, each with the texts that have it."""

    first: int  # number of the first text
    grams: npt.NDArray[np.uint64]  # [occurrences] ascending
    texts: npt.NDArray[np.uint16]  # [occurrences] within the block, ascending for each gram
    counts: Numbers  # [occurrences] how often the text has the gram
    lengths: Numbers  # [texts] in grams


def character_index(texts: Sequence[str]) -> CharacterIndex:
    """Return the index of texts, at least one."""
    totals = [(*np.unique(block.grams, return_counts=True), block.lengths.sum()) for block in _blocks(texts)]
    grams, inverse = np.unique(np.concatenate([of_block for of_block, _, _ in totals]), return_inverse=True)
    frequencies = np.bincount(inverse, np.concatenate([counts for _, counts, _ in totals]), len(grams)).astype(np.int64)
    rarity = _rarity(frequencies, len(texts))
    mean_length = max(1.0, sum(length for _, _, length in totals) / len(texts))
    starts = np.concatenate([[0], np.cumsum(frequencies)])
    numbers = np.empty(starts[-1], np.int32)
    weights = np.empty(starts[-1], np.float32)
    ends = starts[:-1].copy()  # of what the blocks have filled so far
    for block in _blocks(texts):
        of_block, begins, sizes = np.unique(block.grams, return_index=True, return_counts=True)
        indices = np.searchsorted(grams, of_block)
        positions = np.repeat(ends[indices] - begins, sizes) + np.arange(len(block.grams))
        ends[indices] += sizes
        numbers[positions] = block.first + block.texts.astype(np.int32)
        lengths = block.lengths[block.texts] / mean_length
        weights[positions] = np.repeat(rarity[indices], sizes) * _saturation(block.counts, lengths)
    return CharacterIndex(len(texts), float(mean_length), grams, starts, numbers, weights)


def _blocks(texts: Sequence[str]) -> Iterator[_Block]:
    for first in range(0, len(texts), BLOCK):
        in_block = texts[first : first + BLOCK]
        grams, numbers = _grams(in_block)
        keys, counts = np.unique(grams << np.uint64(16) | numbers.astype(np.uint64), return_counts=True)
        lengths = np.bincount(numbers, minlength=len(in_block))
        yield _Block(first, keys >> np.uint64(16), keys.astype(np.uint16), counts, lengths)


def _grams(texts: Sequence[str]) -> tuple[npt.NDArray[np.uint64], Numbers]:
    """Return the characters and pairs of characters of texts, each as a number, and the number of the text of each."""
    points, lengths = code_points([text.replace(" ", "") for text in texts])
    numbers = np.repeat(np.arange(len(texts)), lengths)
    characters = points.astype(np.uint64)
    pairs = (characters[:-1] + np.uint64(1)) << np.uint64(POINT_BITS) | characters[1:]
    in_one_text = numbers[:-1] == numbers[1:]
    return np.concatenate([characters, pairs[in_one_text]]), np.concatenate([numbers, numbers[1:][in_one_text]])
