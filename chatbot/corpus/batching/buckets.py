"""Buckets: at most eight shapes that pairs are padded to, chosen from the lengths to keep padding low."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.lengths import SOURCE, TARGET, Lengths

MAX_BUCKETS = 8
# A bucket with fewer batches loses more by its last, partial batch than it saves on padding.
MIN_BATCHES = 4

# The cost of a padded position of the source and of the target. With equal costs a third of the target positions of
# short chat would be padding; BENCHMARKS.md compares several costs.
COSTS = np.array([[1], [6]])


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Pairs that are padded to one shape."""

    above: tuple[int, int]  # all its sources and targets are longer than this
    shape: tuple[int, int]  # its longest source and target, EOS counted
    bounds: tuple[int, int]  # all its sources and targets are at most this long
    pairs: int
    batch_size: int  # pairs of a batch

    def rows(self, pairs: EncodedPairs) -> npt.NDArray[np.int64]:
        """Return the indices of the pairs that belong to this bucket."""
        inside = np.ones(len(pairs), np.bool_)
        for side, lengths in ((SOURCE, pairs.sources.lengths), (TARGET, pairs.targets.lengths + 1)):
            inside &= (lengths > self.above[side]) & (lengths <= self.bounds[side])
        return np.nonzero(inside)[0]

    @property
    def batches(self) -> int:
        return math.ceil(self.pairs / self.batch_size)


@dataclasses.dataclass(frozen=True)
class _Box:
    """A rectangle of lengths, and the combinations of lengths inside it."""

    above: tuple[int, int]
    bounds: tuple[int, int]
    combinations: npt.NDArray[np.int64]


def choose_buckets(lengths: Lengths, batch_size: Callable[[int, int], int]) -> list[Bucket]:
    """Return at most MAX_BUCKETS shapes for all pairs.

    Starts from one box around all lengths. Repeatedly makes the cut along source or target length that saves the
    most padding, until no cut leaves MIN_BATCHES full batches on both sides.

    batch_size: the function from source and target length to the number of pairs in a batch.
    """
    longest = (int(lengths.sides[SOURCE].max()), int(lengths.sides[TARGET].max()))
    boxes = [_Box((0, 0), longest, np.arange(len(lengths.counts)))]
    while len(boxes) < MAX_BUCKETS:
        cuts = [(*_best_cut(lengths, box.combinations, batch_size), i) for i, box in enumerate(boxes)]
        saved, side, bound, i = max(cuts)
        if saved <= 0:
            break
        boxes[i : i + 1] = _cut(boxes[i], lengths, side, bound)
    return [_bucket(box, lengths, batch_size) for box in boxes]


def _best_cut(
    lengths: Lengths, combinations: npt.NDArray[np.int64], batch_size: Callable[[int, int], int]
) -> tuple[int, int, int]:
    """Return (cost saved, side, bound) of the best cut of one box; the cost saved is 0 if no cut is allowed."""
    best = (0, 0, 0)
    sides, counts = lengths.sides[:, combinations], lengths.counts[combinations]
    min_pairs = MIN_BATCHES * batch_size(*map(int, sides.max(axis=1)))
    for side in (SOURCE, TARGET):
        order = np.argsort(sides[side], kind="stable")
        ordered, below = sides[:, order], np.cumsum(counts[order])
        costs = ordered * COSTS
        # Cost of a pair padded to the longest combination up to each one, and from each one on, both [combinations].
        low = np.maximum.accumulate(costs, axis=1).sum(axis=0)
        high = np.maximum.accumulate(costs[:, ::-1], axis=1)[:, ::-1].sum(axis=0)
        inside, outside = below[:-1], below[-1] - below[:-1]
        saved = high[0] * below[-1] - (low[:-1] * inside + high[1:] * outside)
        distinct = ordered[side, :-1] < ordered[side, 1:]
        allowed = distinct & (inside >= min_pairs) & (outside >= min_pairs)
        if allowed.any():
            cut = int(np.argmax(np.where(allowed, saved, -1)))
            best = max(best, (int(saved[cut]), side, int(ordered[side, cut])))
    return best


def _cut(box: _Box, lengths: Lengths, side: int, bound: int) -> list[_Box]:
    inside = lengths.sides[side, box.combinations] <= bound
    above, bounds = list(box.above), list(box.bounds)
    above[side] = bounds[side] = bound
    return [
        _Box(box.above, (bounds[0], bounds[1]), box.combinations[inside]),
        _Box((above[0], above[1]), box.bounds, box.combinations[~inside]),
    ]


def _bucket(box: _Box, lengths: Lengths, batch_size: Callable[[int, int], int]) -> Bucket:
    source, target = map(int, lengths.sides[:, box.combinations].max(axis=1))
    pairs = int(lengths.counts[box.combinations].sum())
    return Bucket(box.above, (source, target), box.bounds, pairs, batch_size(source, target))
