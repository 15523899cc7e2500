"""Interpolated modified Kneser-Ney smoothing, one n-gram after another: the slow twin."""

from collections import Counter
from collections.abc import Sequence

Gram = tuple[int, ...]


def discounts(counts: Counter[Gram]) -> list[float]:
    """What is taken from a count of 0, 1, 2, and 3 or more (Chen and Goodman, 1999)."""
    ones, twos, threes, fours = (max(1, sum(c == n for c in counts.values())) for n in (1, 2, 3, 4))
    ratio = ones / (ones + 2 * twos)
    taken = 1 - 2 * ratio * twos / ones, 2 - 3 * ratio * threes / twos, 3 - 4 * ratio * fours / threes
    return [0.0, *(max(0.05, x) for x in taken)]


class SlowKneserNey:
    """Probabilities from the occurrences of the longest n-grams."""

    def __init__(self, grams: Sequence[Gram], order: int, vocabulary: int, like: "SlowKneserNey | None" = None) -> None:
        self.order, self.vocabulary = order, vocabulary
        counts = Counter(grams)
        self.counts = [counts]  # from the longest to single ids
        for _ in range(order - 1):
            counts = Counter(gram[1:] for gram in counts)
            self.counts.insert(0, counts)
        self.discounts: list[list[float]] = like.discounts if like else [discounts(counts) for counts in self.counts]

    def probability(self, history: Gram, token: int) -> float:
        """The probability of a token after order - 1 others."""
        result = 1 / self.vocabulary
        for length in range(1, self.order + 1):
            context = history[len(history) - length + 1 :]
            followers = {gram[-1]: n for gram, n in self.counts[length - 1].items() if gram[:-1] == context}
            if followers:
                taken, total = self.discounts[length - 1], sum(followers.values())
                passed = sum(taken[min(n, 3)] for n in followers.values()) / total
                n = followers.get(token, 0)
                result = max(0.0, n - taken[min(n, 3)]) / total + passed * result
        return result


def grams_of(sequences: Sequence[Sequence[int]], order: int, begin: int, end: int) -> list[Gram]:
    """All n-grams of the sequences, each with `begin` before it and `end` after it."""
    grams = []
    for sequence in sequences:
        padded = [begin] * (order - 1) + [*sequence, end]
        grams += [tuple(padded[i : i + order]) for i in range(len(sequence) + 1)]
    return grams
