"""Pairs as ids in flat arrays, from which batches are cut by array operations."""

import dataclasses

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.ragged import Indices, Offsets, Ragged
from chatbot.corpus.encoding.vocabulary import ASK, BOS

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
        begins, characters = np.full_like(self.begins, ASK), np.zeros_like(self.characters)
        return EncodedPairs(self.targets, self.sources, begins, characters)

    def __add__(self, other: "EncodedPairs") -> "EncodedPairs":
        """Return these pairs, then the pairs of other."""
        return EncodedPairs(
            self.sources + other.sources,
            self.targets + other.targets,
            np.concatenate([self.begins, other.begins]),
            np.concatenate([self.characters, other.characters]),
        )
