"""Pairs as ids in flat arrays: little memory, and a batch is a few slices."""

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chatbot.corpus.tokenizer import SPACE
from chatbot.corpus.vocabulary import ASK, BOS, Vocabulary

Ids = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of different length: row i is flat[offsets[i]:offsets[i + 1]]."""

    flat: Ids  # [total]
    offsets: Offsets  # [rows + 1]

    @property
    def lengths(self) -> Offsets:
        """[rows] the length of each row."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> Ids:
        """[length] row number index."""
        return self.flat[self.offsets[index] : self.offsets[index + 1]]

    def __add__(self, other: "Ragged") -> "Ragged":
        """These rows, then the other ones."""
        offsets = np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]])
        return Ragged(np.concatenate([self.flat, other.flat]), offsets)

    def select(self, rows: Sequence[int] | npt.NDArray[np.integer]) -> "Ragged":
        """The rows with these numbers, in this order."""
        return ragged([self.row(int(i)) for i in rows])


def ragged(rows: Sequence[Sequence[int] | Ids]) -> Ragged:
    """Rows of ids as one Ragged."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    flat = np.concatenate([np.asarray(row, np.int32) for row in rows]) if rows else np.zeros(0, np.int32)
    return Ragged(flat.astype(np.int32), offsets)


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Pairs as ids, without the begin and end symbols."""

    sources: Ragged
    targets: Ragged
    begins: Ids  # [pairs] the symbol each target begins with: BOS, or ASK where the pair is reversed
    characters: Offsets  # [pairs] of each target, spaces left out

    def __len__(self) -> int:
        return len(self.sources)

    def select(self, rows: Sequence[int] | npt.NDArray[np.integer]) -> "Encoded":
        """The pairs with these numbers, in this order."""
        numbers = np.asarray(rows, np.int64)
        return Encoded(
            self.sources.select(numbers),
            self.targets.select(numbers),
            self.begins[numbers],
            self.characters[numbers],
        )

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

    def fingerprint(self) -> str:
        """A hash of the pairs and their order, to tell whether a resumed run reads the same data."""
        digest = hashlib.sha256()
        for part in (self.sources, self.targets):
            digest.update(part.offsets.tobytes())
            digest.update(part.flat.tobytes())
        return digest.hexdigest()


def encode(pairs: Sequence[tuple[Sequence[str], Sequence[str]]], vocabulary: Vocabulary) -> Encoded:
    """Encode pairs of words."""
    targets = ragged([vocabulary.ids(target) for _, target in pairs])
    return Encoded(
        ragged([vocabulary.ids(source) for source, _ in pairs]),
        targets,
        np.full(len(targets), BOS, np.int32),
        np.array([characters_of(target) for _, target in pairs], np.int64),
    )


def characters_of(words: Sequence[str]) -> int:
    """Characters of a reply, spaces left out: the denominator of nats_per_character."""
    return sum(len(word.replace(SPACE, "")) for word in words)
