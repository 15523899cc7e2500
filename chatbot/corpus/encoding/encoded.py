"""Pairs as ids in flat arrays: little memory, and a batch is a few slices."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.vocabulary import ASK, BOS

Ids = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
Numbers = Sequence[int] | npt.NDArray[np.integer]


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of different length: row i is flat[starts[i] : starts[i] + lengths[i]]. Rows may share flat."""

    flat: npt.NDArray[Any]  # [total] of any integer type
    starts: Offsets  # [rows]
    lengths: Offsets  # [rows]

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, index: int) -> npt.NDArray[Any]:
        """[length] row number index."""
        return self.flat[self.starts[index] : self.starts[index] + self.lengths[index]]

    def select(self, rows: Numbers) -> "Ragged":
        """The rows with these numbers, in this order; nothing is copied."""
        return Ragged(self.flat, self.starts[rows], self.lengths[rows])

    def joined(self) -> npt.NDArray[Any]:
        """[sum of lengths] all rows, one after the other."""
        ends = np.cumsum(self.lengths)
        shift = np.repeat(self.starts - (ends - self.lengths), self.lengths)
        return self.flat[shift + np.arange(len(shift))]

    def __add__(self, other: "Ragged") -> "Ragged":
        """These rows, then the other ones."""
        lengths = np.concatenate([self.lengths, other.lengths])
        if self.flat is other.flat:
            return Ragged(self.flat, np.concatenate([self.starts, other.starts]), lengths)
        starts = np.concatenate([self.starts, other.starts + len(self.flat)])
        return Ragged(np.concatenate([self.flat, other.flat]), starts, lengths)


def ragged(rows: Sequence[Sequence[int]]) -> Ragged:
    """Rows of ids as one Ragged."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum()))
    return Ragged(flat, np.cumsum(lengths) - lengths, lengths)


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Pairs as ids, without the begin and end symbols."""

    sources: Ragged
    targets: Ragged
    begins: Ids  # [pairs] the symbol each target begins with: BOS, or ASK where the pair is reversed
    characters: Offsets  # [pairs] of each target, spaces left out: the denominator of nats_per_character

    def __len__(self) -> int:
        return len(self.sources)

    def select(self, rows: Numbers) -> "Encoded":
        """The pairs with these numbers, in this order; no token is copied."""
        numbers = np.asarray(rows, np.int64)
        return Encoded(
            self.sources.select(numbers), self.targets.select(numbers), self.begins[numbers], self.characters[numbers]
        )

    def within(self, max_length: int) -> "Encoded":
        """The pairs of which neither side, the end symbol counted in the target, is longer."""
        fits = (self.sources.lengths <= max_length) & (self.targets.lengths < max_length)
        return self if fits.all() else self.select(np.nonzero(fits)[0])

    def reversed(self) -> "Encoded":
        """The pairs from answer to question. Their characters are not known, and 0."""
        return Encoded(self.targets, self.sources, np.full_like(self.begins, ASK), np.zeros_like(self.characters))

    def __add__(self, other: "Encoded") -> "Encoded":
        """These pairs, then the other ones."""
        return Encoded(
            self.sources + other.sources,
            self.targets + other.targets,
            np.concatenate([self.begins, other.begins]),
            np.concatenate([self.characters, other.characters]),
        )


def encoded(sources: Ragged, targets: Ragged, characters: Offsets) -> Encoded:
    """Pairs from question to answer."""
    return Encoded(sources, targets, np.full(len(sources), BOS, np.int32), characters)
