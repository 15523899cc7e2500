"""Pairs as ids in flat arrays, from which batches are cut by array operations, and their lengths."""

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
    """Rows of different lengths: row i is flat[starts[i] : starts[i] + lengths[i]]. Rows may share elements."""

    flat: npt.NDArray[Any]  # [total] of any integer type
    starts: Offsets  # [rows]
    lengths: Offsets  # [rows]

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """Return rows of ids, as int32."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return cls.from_lengths(flat, lengths)

    @classmethod
    def from_lengths(cls, flat: npt.NDArray[Any], lengths: npt.NDArray[np.integer]) -> "Ragged":
        """Return rows of these lengths that follow one another in flat."""
        sizes: Offsets = lengths.astype(np.int64)
        return cls(flat, np.cumsum(sizes) - sizes, sizes)

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, index: int) -> npt.NDArray[Any]:
        """Return one row, [length]."""
        return self.flat[self.starts[index] : self.starts[index] + self.lengths[index]]

    def select(self, rows: Indices) -> "Ragged":
        """Return the rows with these indices, in this order; the flat array is shared."""
        return Ragged(self.flat, self.starts[rows], self.lengths[rows])

    def joined(self) -> npt.NDArray[Any]:
        """Return the elements of all rows, one row after the other: [sum of lengths]."""
        ends = np.cumsum(self.lengths)
        shift = np.repeat(self.starts - (ends - self.lengths), self.lengths)
        return self.flat[shift + np.arange(len(shift))]

    def __add__(self, other: "Ragged") -> "Ragged":
        """Return these rows, then the rows of other."""
        lengths = np.concatenate([self.lengths, other.lengths])
        if self.flat is other.flat:
            return Ragged(self.flat, np.concatenate([self.starts, other.starts]), lengths)
        starts = np.concatenate([self.starts, other.starts + len(self.flat)])
        return Ragged(np.concatenate([self.flat, other.flat]), starts, lengths)


Ids = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class EncodedPairs:
    """Pairs as ids, without BOS and EOS."""

    sources: Ragged
    targets: Ragged
    begins: Ids  # [pairs] the first id of each target_in: BOS, or ASK where the pair is reversed
    characters: Offsets  # [pairs] characters of each target without spaces, the denominator of nats_per_character

    @classmethod
    def question_to_answer(cls, sources: Ragged, targets: Ragged, characters: Offsets) -> "EncodedPairs":
        """Return pairs whose targets begin with BOS."""
        return cls(sources, targets, np.full(len(sources), BOS, np.int32), characters)

    def __len__(self) -> int:
        return len(self.sources)

    def select(self, rows: Indices) -> "EncodedPairs":
        """Return the pairs with these indices, in this order; tokens are shared, not copied."""
        indices = np.asarray(rows, np.int64)
        return EncodedPairs(
            self.sources.select(indices),
            self.targets.select(indices),
            self.begins[indices],
            self.characters[indices],
        )

    def within(self, max_length: int) -> "EncodedPairs":
        """Return the pairs with at most max_length tokens on each side, EOS counted in the target."""
        fits = (self.sources.lengths <= max_length) & (self.targets.lengths < max_length)
        return self if fits.all() else self.select(np.nonzero(fits)[0])

    def reversed(self) -> "EncodedPairs":
        """Return the pairs from answer to question. Their numbers of characters are unknown and set to 0."""
        begins = np.full_like(self.begins, ASK)
        characters = np.zeros_like(self.characters)
        return EncodedPairs(self.targets, self.sources, begins, characters)

    def __add__(self, other: "EncodedPairs") -> "EncodedPairs":
        """Return these pairs, then the pairs of other."""
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
    """The number of pairs for each combination of lengths. The choice of buckets depends on nothing else."""

    sides: Offsets  # [2, combinations] tokens of the source and of the target, EOS counted; distinct columns, sorted
    counts: Offsets  # [combinations] pairs

    @classmethod
    def of(cls, sides: npt.NDArray[np.integer], counts: npt.NDArray[np.integer] | None = None) -> "Lengths":
        """Count the columns of sides, [2, any number]. counts: the number of pairs of each column; None: one each."""
        combined = (sides[SOURCE].astype(np.int64) << 32) + sides[TARGET]  # two lengths in one number
        distinct, index = np.unique(combined, return_inverse=True)
        summed = np.bincount(index, counts, len(distinct)).astype(np.int64)
        return cls(np.stack([distinct >> 32, distinct & 0xFFFFFFFF]), summed)

    @property
    def pairs(self) -> int:
        """The number of pairs."""
        return int(self.counts.sum())

    def within(self, max_length: int) -> "Lengths":
        """Return the lengths of `EncodedPairs.within`."""
        fits = (self.sides <= max_length).all(axis=0)
        return Lengths(self.sides[:, fits], self.counts[fits])

    def reversed(self) -> "Lengths":
        """Return the lengths of `EncodedPairs.reversed`."""
        return Lengths.of(np.stack([self.sides[TARGET] - 1, self.sides[SOURCE] + 1]), self.counts)

    def __add__(self, other: "Lengths") -> "Lengths":
        """Return the lengths of the pairs of both."""
        sides = np.concatenate([self.sides, other.sides], axis=1)
        return Lengths.of(sides, np.concatenate([self.counts, other.counts]))


NO_PAIRS = Lengths.of(np.zeros([2, 0], np.int64))


def lengths_of(shards: Iterable[EncodedPairs]) -> Lengths:
    """Count the lengths in all shards."""
    return sum((Lengths.of(np.stack([pairs.sources.lengths, pairs.targets.lengths + 1])) for pairs in shards), NO_PAIRS)
