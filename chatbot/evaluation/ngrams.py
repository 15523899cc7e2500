"""The variety of n-grams in a set of replies."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Ngrams:
    """The n-grams of a set of replies, with their counts."""

    counts: "Counter[tuple[str, ...]]"

    @classmethod
    def of(cls, replies: Iterable[Sequence[str]], n: int) -> "Ngrams":
        """Return the n-grams of these replies. A reply is a sequence of tokens, or a text for n-grams of characters."""
        return cls(Counter(tuple(reply[i : i + n]) for reply in replies for i in range(len(reply) - n + 1)))

    def __add__(self, other: "Ngrams") -> "Ngrams":
        """Return the n-grams of both sets of replies."""
        return Ngrams(self.counts + other.counts)

    @property
    def distinct(self) -> float:
        """The number of different n-grams over the number of n-grams (Li et al., 2016); 0 if there are none.

        It falls as the number of replies grows: compare sets of equal size only. Random replies have the value of
        human ones: read it beside relevance.
        """
        return len(self.counts) / max(1, self.counts.total())
