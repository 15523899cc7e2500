"""Relevance: whether a reply fits its own question better than other questions, judged without the model."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chatbot.evaluation.character_index import CharacterIndex

# The number of questions that a reply is compared with, its own included.
QUESTIONS = 10
# The other questions of a reply are drawn from a block of at most this many pairs: the time is linear in the pairs.
BLOCK = 2000
SEED = 1


@dataclasses.dataclass(frozen=True)
class Relevance:
    """Sums over replies."""

    first: float  # replies whose own question ranks first
    replies: int

    def __add__(self, other: "Relevance") -> "Relevance":
        """Return the sums over both sets of replies."""
        return Relevance(self.first + other.first, self.replies + other.replies)

    @property
    def at_1(self) -> float | None:
        """The share of replies whose own question ranks first of ten, 0 to 1; None without replies.

        Replies that are drawn at random have 0.1. A reply that repeats its question has 1.
        """
        return self.first / self.replies if self.replies else None


def relevance(questions: Sequence[str], replies: Sequence[str]) -> Relevance:
    """Return how often a reply's own question ranks first; with fewer than ten pairs, of no reply."""
    shares = ranked_first(questions, replies)
    return Relevance(0.0, 0) if shares is None else Relevance(float(shares.sum()), len(shares))


def ranked_first(questions: Sequence[str], replies: Sequence[str]) -> npt.NDArray[np.float64] | None:
    """Return for each reply 1 if its own question ranks first of ten, else 0, [replies]; None with fewer than ten.

    The nine other questions are drawn by a seed. If k questions rank first together, each of them counts as 1/k.
    """
    if len(questions) < QUESTIONS:
        return None
    random = np.random.default_rng(SEED)
    shares = np.zeros(len(questions))
    for block in np.array_split(random.permutation(len(questions)), math.ceil(len(questions) / BLOCK)):
        index = CharacterIndex([questions[i] for i in block])
        for own, number in enumerate(block):
            others = random.choice(len(block) - 1, QUESTIONS - 1, replace=False)
            others += others >= own
            scores = index.scores(replies[number])
            equal, higher = (int(compare(scores[others], scores[own]).sum()) for compare in (np.equal, np.greater))
            shares[number] = 0 if higher else 1 / (1 + equal)
    return shares
