"""A few shapes that all pairs are padded to, chosen from their lengths so that little is padded."""

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.ragged import Offsets

MOST_BUCKETS = 8
# A bucket with fewer batches than this wastes more on its last, partial batch than it saves on padding.
LEAST_BATCHES = 4

SOURCE, TARGET = 0, 1
# What a padded position of each side counts when the cuts are chosen: with equal weights a third of the target
# positions of short chat would be padding. BENCHMARKS.md has what each weight gives.
COSTS = np.array([[1], [6]])


@dataclasses.dataclass(frozen=True)
class Lengths:
    """How many pairs have which lengths: all that the choice of buckets needs to know of a corpus."""

    sides: Offsets  # [2, kinds] tokens of the source and of the target, EOS counted; each kind once
    counts: Offsets  # [kinds] pairs


def lengths_of(shards: Iterable[EncodedPairs]) -> Lengths:
    """Count the lengths, one shard after the other."""
    kinds, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for pairs in shards:
        both = (pairs.sources.lengths << 32) + pairs.targets.lengths + 1  # one number for two lengths
        some, some_counts = np.unique(both, return_counts=True)
        kinds, place = np.unique(np.concatenate([kinds, some]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([counts, some_counts]), len(kinds)).astype(np.int64)
    return Lengths(np.stack([kinds >> 32, kinds & 0xFFFFFFFF]), counts)


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Pairs that are padded to one shape."""

    above: tuple[int, int]  # lengths of source and target that all its pairs exceed
    shape: tuple[int, int]  # the longest source and target among its pairs, EOS counted
    bounds: tuple[int, int]  # lengths that none exceeds
    pairs: int
    batch_size: int  # pairs of a batch

    def rows(self, pairs: EncodedPairs) -> npt.NDArray[np.int64]:
        """The numbers of the pairs that belong here."""
        inside = np.ones(len(pairs), np.bool_)
        for side, lengths in ((SOURCE, pairs.sources.lengths), (TARGET, pairs.targets.lengths + 1)):
            inside &= (lengths > self.above[side]) & (lengths <= self.bounds[side])
        return np.nonzero(inside)[0]

    @property
    def batches(self) -> int:
        return math.ceil(self.pairs / self.batch_size)


@dataclasses.dataclass(frozen=True)
class _Box:
    """A rectangle of lengths, and the kinds that are in it."""

    above: tuple[int, int]
    bounds: tuple[int, int]
    kinds: npt.NDArray[np.int64]


def choose_buckets(lengths: Lengths, batch_size: Callable[[int, int], int]) -> list[Bucket]:
    """At most MOST_BUCKETS shapes for all pairs.

    Starting from one box that holds all kinds of pairs, the cut along source or target length that saves
    the most padding is made until no cut leaves LEAST_BATCHES full batches on both sides.

    batch_size: the pairs of a batch of this shape.
    """
    farthest = (int(lengths.sides[SOURCE].max()), int(lengths.sides[TARGET].max()))
    boxes = [_Box((0, 0), farthest, np.arange(len(lengths.counts)))]
    while len(boxes) < MOST_BUCKETS:
        cuts = [(*_best_cut(lengths, box.kinds, batch_size), i) for i, box in enumerate(boxes)]
        saved, side, bound, i = max(cuts)
        if saved <= 0:
            break
        boxes[i : i + 1] = _cut(boxes[i], lengths, side, bound)
    return [_bucket(box, lengths, batch_size) for box in boxes]


def _best_cut(
    lengths: Lengths, kinds: npt.NDArray[np.int64], batch_size: Callable[[int, int], int]
) -> tuple[int, int, int]:
    """(cost saved, side, bound) of the best cut of one box; saves 0 when none is allowed."""
    best = (0, 0, 0)
    sides, counts = lengths.sides[:, kinds], lengths.counts[kinds]
    least = LEAST_BATCHES * batch_size(*map(int, sides.max(axis=1)))
    for side in (SOURCE, TARGET):
        order = np.argsort(sides[side], kind="stable")
        ordered, below = sides[:, order], np.cumsum(counts[order])
        weighed = ordered * COSTS
        low = np.maximum.accumulate(weighed, axis=1).sum(axis=0)  # [kinds] cost of a pair, up to here
        high = np.maximum.accumulate(weighed[:, ::-1], axis=1)[:, ::-1].sum(axis=0)
        inside, beyond = below[:-1], below[-1] - below[:-1]
        saved = high[0] * below[-1] - (low[:-1] * inside + high[1:] * beyond)
        distinct = ordered[side, :-1] < ordered[side, 1:]
        allowed = distinct & (inside >= least) & (beyond >= least)
        if allowed.any():
            at = int(np.argmax(np.where(allowed, saved, -1)))
            best = max(best, (int(saved[at]), side, int(ordered[side, at])))
    return best


def _cut(box: _Box, lengths: Lengths, side: int, bound: int) -> list[_Box]:
    inside = lengths.sides[side, box.kinds] <= bound
    above, bounds = list(box.above), list(box.bounds)
    above[side] = bounds[side] = bound
    return [
        _Box(box.above, (bounds[0], bounds[1]), box.kinds[inside]),
        _Box((above[0], above[1]), box.bounds, box.kinds[~inside]),
    ]


def _bucket(box: _Box, lengths: Lengths, batch_size: Callable[[int, int], int]) -> Bucket:
    source, target = map(int, lengths.sides[:, box.kinds].max(axis=1))
    pairs = int(lengths.counts[box.kinds].sum())
    return Bucket(box.above, (source, target), box.bounds, pairs, batch_size(source, target))
