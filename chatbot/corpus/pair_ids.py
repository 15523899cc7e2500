"""Pairs of token ids, stored in flat arrays for fast batching, and statistics of their lengths."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chatbot.corpus.vocabulary import ASK, BOS

Offsets = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Indices = Sequence[int] | npt.NDArray[np.integer]


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: row i is flat[starts[i] : starts[i] + lengths[i]]. Rows can overlap."""

    flat: npt.NDArray[Any]  # [total], of any integer dtype
    starts: Offsets  # [rows]
    lengths: Offsets  # [rows]

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """Create an int32 array from rows of ids."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return cls.from_lengths(flat, lengths)

    @classmethod
    def from_lengths(cls, flat: npt.NDArray[Any], lengths: npt.NDArray[np.integer]) -> "Ragged":
        """Split `flat` into consecutive rows of these lengths."""
        sizes: Offsets = lengths.astype(np.int64)
        return cls(flat, np.cumsum(sizes) - sizes, sizes)

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, index: int) -> npt.NDArray[Any]:
        """Return one row, [length]."""
        return self.flat[self.starts[index] : self.starts[index] + self.lengths[index]]

    def select(self, rows: Indices) -> "Ragged":
        """Return the rows at these indices, without copying the flat array."""
        return Ragged(self.flat, self.starts[rows], self.lengths[rows])

    def joined(self) -> npt.NDArray[Any]:
        """Concatenate all rows into one array, [sum of lengths]."""
        ends = np.cumsum(self.lengths)
        shift = np.repeat(self.starts - (ends - self.lengths), self.lengths)
        return self.flat[shift + np.arange(len(shift))]

    def __add__(self, other: "Ragged") -> "Ragged":
        """Return these rows followed by the rows of `other`."""
        lengths = np.concatenate([self.lengths, other.lengths])
        if self.flat is other.flat:
            return Ragged(self.flat, np.concatenate([self.starts, other.starts]), lengths)
        starts = np.concatenate([self.starts, other.starts + len(self.flat)])
        return Ragged(np.concatenate([self.flat, other.flat]), starts, lengths)


Ids = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class EncodedPairs:
    """Pairs of a source and a target as token ids, without BOS and EOS."""

    sources: Ragged
    targets: Ragged
    begins: Ids  # [pairs] first decoder input: BOS, or ASK if the decoder generates a question from an answer
    characters: Offsets  # [pairs] non-space characters in each target, to compute the metric nats_per_character

    @classmethod
    def question_to_answer(cls, sources: Ragged, targets: Ragged, characters: Offsets) -> "EncodedPairs":
        """Create pairs from questions to answers, whose decoder inputs begin with BOS."""
        return cls(sources, targets, np.full(len(sources), BOS, np.int32), characters)

    def __len__(self) -> int:
        return len(self.sources)

    def select(self, rows: Indices) -> "EncodedPairs":
        """Return the pairs at these indices, without copying the tokens."""
        indices = np.asarray(rows, np.int64)
        return EncodedPairs(
            self.sources.select(indices),
            self.targets.select(indices),
            self.begins[indices],
            self.characters[indices],
        )

    def within(self, max_length: int) -> "EncodedPairs":
        """Return the pairs whose sides have at most `max_length` tokens each. In targets, EOS counts as a token."""
        fits = (self.sources.lengths <= max_length) & (self.targets.lengths < max_length)
        return self if fits.all() else self.select(np.nonzero(fits)[0])

    def reversed(self) -> "EncodedPairs":
        """Return the pairs with sources and targets swapped. Numbers of characters are unknown and become 0."""
        begins = np.full_like(self.begins, ASK)
        characters = np.zeros_like(self.characters)
        return EncodedPairs(self.targets, self.sources, begins, characters)

    def __add__(self, other: "EncodedPairs") -> "EncodedPairs":
        """Return these pairs followed by the pairs of `other`."""
        return EncodedPairs(
            self.sources + other.sources,
            self.targets + other.targets,
            np.concatenate([self.begins, other.begins]),
            np.concatenate([self.characters, other.characters]),
        )


SOURCE = 0
TARGET = 1


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Number of pairs for each combination of source and target length, from which buckets are chosen."""

    sides: Offsets  # [2, combinations] sorted combinations of source length and target length, including EOS
    counts: Offsets  # [combinations] number of pairs

    @classmethod
    def count(cls, sides: npt.NDArray[np.integer], counts: npt.NDArray[np.integer] | None = None) -> "Lengths":
        """Count the pairs for each distinct combination of lengths.

        Args:
            sides: Source and target lengths, [2, columns].
            counts: Number of pairs with the lengths in each column, [columns]; 1 for each column if None.
        """
        combined = (sides[SOURCE].astype(np.int64) << 32) + sides[TARGET]  # packs both lengths into one integer
        distinct, index = np.unique(combined, return_inverse=True)
        summed = np.bincount(index, counts, len(distinct)).astype(np.int64)
        return cls(np.stack([distinct >> 32, distinct & 0xFFFFFFFF]), summed)

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return int(self.counts.sum())

    def within(self, max_length: int) -> "Lengths":
        """Return the lengths of the pairs that `EncodedPairs.within` keeps."""
        fits = (self.sides <= max_length).all(axis=0)
        return Lengths(self.sides[:, fits], self.counts[fits])

    def reversed(self) -> "Lengths":
        """Return the lengths of the pairs that `EncodedPairs.reversed` returns."""
        return Lengths.count(np.stack([self.sides[TARGET] - 1, self.sides[SOURCE] + 1]), self.counts)

    def __add__(self, other: "Lengths") -> "Lengths":
        """Return the sum of the counts of both operands."""
        sides = np.concatenate([self.sides, other.sides], axis=1)
        return Lengths.count(sides, np.concatenate([self.counts, other.counts]))


NO_PAIRS = Lengths.count(np.zeros([2, 0], np.int64))


def lengths_of(shards: Iterable[EncodedPairs]) -> Lengths:
    """Count the combinations of source and target length in all shards."""
    return sum(
        (Lengths.count(np.stack([pairs.sources.lengths, pairs.targets.lengths + 1])) for pairs in shards), NO_PAIRS
    )
