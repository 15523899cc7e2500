"""Rows of different lengths in one flat array."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
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
