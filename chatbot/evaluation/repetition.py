"""How often the same reply is given to different questions."""

import dataclasses
import math
from collections import Counter


@dataclasses.dataclass(frozen=True)
class Repetition:
    """The replies to a set of questions, with their counts. Two replies are the same if their texts are equal."""

    counts: "Counter[str]"

    def __add__(self, other: "Repetition") -> "Repetition":
        """Return the replies of both sets."""
        return Repetition(self.counts + other.counts)

    @property
    def replies(self) -> int:
        """The number of replies."""
        return self.counts.total()

    def top_share(self, number: int) -> float:
        """Return the share of the most common replies, this many, in all replies, 0 to 1."""
        return sum(count for _, count in self.counts.most_common(number)) / max(1, self.replies)

    @property
    def repeated_share(self) -> float:
        """The share of replies that equal the reply to another question, 0 to 1."""
        return sum(count for count in self.counts.values() if count > 1) / max(1, self.replies)

    @property
    def entropy(self) -> float:
        """The entropy of the distribution of whole replies in nats: 0 for one reply, log n for n different ones."""
        return sum(count * math.log(self.replies / count) for count in self.counts.values()) / max(1, self.replies)
