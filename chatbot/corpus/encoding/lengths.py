"""The lengths of the pairs of a corpus, counted when it is encoded. Training knows them without opening a shard."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.ragged import Offsets

SOURCE, TARGET = 0, 1


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
