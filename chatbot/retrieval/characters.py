"""Measures the similarity of texts by their shared characters, without a trained model."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.vocabulary import code_points
from chatbot.decoding.array_functions import largest_indices

Numbers = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# The parameters of BM25, as in Lucene.
K1 = 1.5
B = 0.75
# The number of texts that are indexed at once, which limits the memory. Indices within a block fit into 16 bits.
BLOCK = 1 << 16
# The numbers of bits that encode a code point and a bigram of two code points.
POINT_BITS = 21
GRAM_BITS = np.uint64(42)
# `nearest` first scores texts by the rarest grams of the query, which together occur at most this many times.
OCCURRENCES = 1 << 17
# `nearest` then scores this number of the best texts with the remaining grams.
CANDIDATES = 1000


@dataclasses.dataclass(frozen=True)
class CharacterIndex:
    """A thread-safe index that scores texts by the characters and character bigrams ("grams") that a query contains.

    The score is BM25 (Robertson and Zaragoza, 2009). Spaces are ignored. Gram i occurs in the texts
    `texts[starts[i] : starts[i + 1]]`, to whose scores it contributes `weights[starts[i] : starts[i + 1]]`.
    """

    size: int  # number of texts
    mean_length: float  # mean number of grams in a text
    grams: npt.NDArray[np.uint64]  # distinct grams in ascending order, [grams]
    starts: Numbers  # index of the first occurrence of each gram, [grams + 1]
    texts: npt.NDArray[np.int32]  # indices of texts, in ascending order for each gram, [occurrences]
    weights: Scores  # contributions to the score, [occurrences]

    def scores(self, query: str) -> Scores:
        """Return the score of each text, [texts]. It is 0 only if the text has no character of the query."""
        return self._sums(self._occurrences(query))

    def nearest(self, query: str, number: int) -> tuple[Numbers, Scores]:
        """Find the texts with the highest scores.

        Texts that share no character with the query are excluded. For equal scores, the lower index comes first. In an
        index of millions of texts, the search can miss texts that share only frequent characters with the query.

        Args:
            query: The query.
            number: The maximum number of texts to return.

        Returns:
            The indices and the scores of the texts, best first, each with shape [texts].
        """
        occurrences = sorted(self._occurrences(query), key=lambda part: len(part.texts))
        ends = np.cumsum([len(part.texts) for part in occurrences])
        rare = max(1, int(np.searchsorted(ends, OCCURRENCES, side="right")))
        scores = self._sums(occurrences[:rare])
        texts = np.flatnonzero(scores > 0).astype(np.int32)
        scores = scores[texts]
        if rare < len(occurrences):
            best = np.sort(largest_indices(scores, max(number, CANDIDATES)))
            texts = texts[best]
            scores = scores[best]
            for part in occurrences[rare:]:
                positions = np.searchsorted(part.texts, texts).clip(max=len(part.texts) - 1)
                scores += np.where(part.texts[positions] == texts, part.weights[positions], 0)
        best = largest_indices(scores, number)
        return texts[best].astype(np.int64), scores[best]

    def weigh(self, texts: Sequence[str]) -> list["WeightedText"]:
        """Weight the distinct grams of any texts by their rarity in the index."""
        grams, numbers = _grams(texts)
        keys = np.sort(numbers.astype(np.uint64) << GRAM_BITS | grams)  # sorted by text, then by gram
        keys = keys[np.flatnonzero(np.diff(keys, prepend=~keys[:1]))]  # several times faster than np.unique
        numbers = (keys >> GRAM_BITS).astype(np.int64)
        grams = keys & ((np.uint64(1) << GRAM_BITS) - np.uint64(1))
        left, right = (np.searchsorted(self.grams, grams, side) for side in ("left", "right"))
        weights = _rarity(self.starts[right] - self.starts[left], self.size)  # Unknown grams get the maximum weight.
        totals = np.bincount(numbers, weights, len(texts)).tolist()
        bounds = np.searchsorted(numbers, np.arange(len(texts) + 1)).tolist()
        parts = itertools.starmap(slice, itertools.pairwise(bounds))
        return [WeightedText(grams[part], weights[part], total) for part, total in zip(parts, totals, strict=True)]

    def _occurrences(self, query: str) -> list["_Occurrences"]:
        """Return the occurrences of each gram of a query. Grams that the query repeats are returned repeatedly."""
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


class WeightedText(NamedTuple):
    """The distinct grams of a text and their weights."""

    grams: npt.NDArray[np.uint64]  # in ascending order
    weights: Doubles
    total: float  # sum of the weights


def similarities(query: WeightedText, texts: Sequence[WeightedText]) -> Doubles:
    """Return the similarity of texts to a query, with shape [texts]. There must be at least one text.

    The similarity is the weighted Dice coefficient of the distinct grams. It is 1 if both texts have the same grams.
    """
    grams = np.concatenate([text.grams for text in texts])
    weights = np.concatenate([text.weights for text in texts])
    numbers = np.repeat(np.arange(len(texts)), [len(text.grams) for text in texts])
    left, right = (np.searchsorted(query.grams, grams, side) for side in ("left", "right"))
    shared = np.bincount(numbers, weights * (left < right), len(texts))
    totals = query.total + np.array([text.total for text in texts])
    return 2 * shared / np.maximum(totals, np.finfo(float).tiny)


def _rarity(frequencies: npt.NDArray[np.integer], size: int) -> Doubles:
    """Return the inverse document frequency of grams in an index of `size` texts, as in Lucene."""
    return np.log1p((size - frequencies + 0.5) / (frequencies + 0.5))


def _saturation(counts: npt.NDArray[np.integer], length: Doubles | float) -> Doubles:
    """Return the BM25 weight of a gram's count in a text. The text's length is relative to the mean length."""
    return counts / (counts + K1 * (1 - B + B * length))


class _Occurrences(NamedTuple):
    """The indices of the texts that contain a gram, in ascending order, and what the gram adds to their scores."""

    texts: npt.NDArray[np.int32]
    weights: Scores


class _Block(NamedTuple):
    """The grams in a block of texts, and the texts that contain each gram."""

    first: int  # index of the first text of the block
    grams: npt.NDArray[np.uint64]  # grams in ascending order, [occurrences]
    texts: npt.NDArray[np.uint16]  # indices of texts within the block, ascending for each gram, [occurrences]
    counts: Numbers  # count of the gram in the text, [occurrences]
    lengths: Numbers  # number of grams in each text, [texts]


def character_index(texts: Sequence[str]) -> CharacterIndex:
    """Build the index of at least one text."""
    totals = [(*np.unique(block.grams, return_counts=True), block.lengths.sum()) for block in _blocks(texts)]
    grams, inverse = np.unique(np.concatenate([block_grams for block_grams, _, _ in totals]), return_inverse=True)
    frequencies = np.bincount(inverse, np.concatenate([counts for _, counts, _ in totals]), len(grams)).astype(np.int64)
    rarity = _rarity(frequencies, len(texts))
    mean_length = max(1.0, sum(length for _, _, length in totals) / len(texts))
    starts = np.concatenate([[0], np.cumsum(frequencies)])
    numbers = np.empty(starts[-1], np.int32)
    weights = np.empty(starts[-1], np.float32)
    ends = starts[:-1].copy()  # next free position of each gram
    for block in _blocks(texts):
        block_grams, begins, sizes = np.unique(block.grams, return_index=True, return_counts=True)
        indices = np.searchsorted(grams, block_grams)
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
    """Return the characters and bigrams of texts as integers, and the index of each one's text."""
    points, lengths = code_points([text.replace(" ", "") for text in texts])
    numbers = np.repeat(np.arange(len(texts)), lengths)
    characters = points.astype(np.uint64)
    pairs = (characters[:-1] + np.uint64(1)) << np.uint64(POINT_BITS) | characters[1:]
    in_one_text = numbers[:-1] == numbers[1:]
    return np.concatenate([characters, pairs[in_one_text]]), np.concatenate([numbers, numbers[1:][in_one_text]])
