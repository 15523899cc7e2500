"""Batches of padded pairs. Pairs of similar lengths are grouped into at most eight buckets, to minimise padding."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.pair_ids import SOURCE, TARGET, EncodedPairs, Ids, Lengths, Ragged, lengths_of
from chatbot.corpus.shards import Shards
from chatbot.corpus.vocabulary import EOS, PAD

MAX_BUCKETS = 8
# Minimum number of batches in a bucket. The last batch of each bucket can be incomplete, so small buckets are slower.
MIN_BATCHES = 4

# Assumed relative cost of a padding token in the source and in the target (compared in docs/experiments.md).
COSTS = np.array([[1], [6]])


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A group of pairs with similar lengths, which are padded to the same shape."""

    shape: tuple[int, int]  # maximum source and target length, including EOS
    pairs: int
    batch_size: int  # pairs per batch

    @property
    def batches(self) -> int:
        """Number of batches per epoch."""
        return math.ceil(self.pairs / self.batch_size)


def choose_buckets(
    lengths: Lengths, batch_size: Callable[[int, int], int]
) -> tuple[list[Bucket], npt.NDArray[np.int8]]:
    """Divide pairs into at most MAX_BUCKETS buckets by their lengths.

    The algorithm starts with a single bucket. In each iteration, it splits a bucket by source or target length such
    that the most padding is saved. Both parts of a split must contain at least MIN_BATCHES full batches.

    Args:
        lengths: Number of pairs for each combination of source and target length.
        batch_size: Function that returns the number of pairs per batch for a source and target length.

    Returns:
        The buckets, and the index of the bucket for each source length and target length (including EOS). The indices
        have shape [longest source + 1, longest target + 1]. They are undefined for lengths that do not occur.
    """
    groups = [np.arange(len(lengths.counts))]  # for each bucket, indices into `lengths`
    while len(groups) < MAX_BUCKETS:
        splits = [(*_best_split(lengths, group, batch_size), i) for i, group in enumerate(groups)]
        saved, side, bound, i = max(splits)
        if saved <= 0:
            break
        fits = lengths.sides[side, groups[i]] <= bound
        groups[i : i + 1] = [groups[i][fits], groups[i][~fits]]
    numbers = np.zeros(lengths.sides.max(axis=1) + 1, np.int8)
    buckets = []
    for number, group in enumerate(groups):
        sources, targets = lengths.sides[:, group]
        numbers[sources, targets] = number
        shape = int(sources.max()), int(targets.max())
        buckets.append(Bucket(shape, int(lengths.counts[group].sum()), batch_size(*shape)))
    return buckets, numbers


def _best_split(
    lengths: Lengths, combinations: npt.NDArray[np.int64], batch_size: Callable[[int, int], int]
) -> tuple[int, int, int]:
    """Find the split of a bucket that saves the most padding.

    Returns:
        The saved cost (0 if no split is allowed), the side (source or target), and the maximum length in the lower part
        of the split.
    """
    best = (0, 0, 0)
    sides = lengths.sides[:, combinations]
    counts = lengths.counts[combinations]
    min_pairs = MIN_BATCHES * batch_size(*map(int, sides.max(axis=1)))
    for side in (SOURCE, TARGET):
        order = np.argsort(sides[side], kind="stable")
        ordered = sides[:, order]
        cumulative = np.cumsum(counts[order])
        costs = ordered * COSTS
        # [combinations] cost of each pair in the lower part and in the upper part, if the bucket is split at an index
        low = np.maximum.accumulate(costs, axis=1).sum(axis=0)
        high = np.maximum.accumulate(costs[:, ::-1], axis=1)[:, ::-1].sum(axis=0)
        pairs_below = cumulative[:-1]
        pairs_above = cumulative[-1] - cumulative[:-1]
        saved = high[0] * cumulative[-1] - (low[:-1] * pairs_below + high[1:] * pairs_above)
        distinct = ordered[side, :-1] < ordered[side, 1:]
        allowed = distinct & (pairs_below >= min_pairs) & (pairs_above >= min_pairs)
        if allowed.any():
            index_of_best = int(np.argmax(np.where(allowed, saved, -1)))
            best = max(best, (int(saved[index_of_best]), side, int(ordered[side, index_of_best])))
    return best


# Maximum number of shards that are memory-mapped at the same time.
MAPPED_SHARDS = 4

Positions = npt.NDArray[np.int64]  # [pairs, 2] shard and row of each pair


class Batch(NamedTuple):
    """Padded pairs for one tower, which is a device that computes gradients.

    All towers pad to the longest source and the longest target of the global batch.
    """

    source: Ids  # [rows, source_length]
    target_in: Ids  # [rows, target_length], starting with BOS or ASK
    target_out: Ids  # [rows, target_length], ending with EOS
    weights: npt.NDArray[np.float32]  # [rows, target_length], 1 for tokens and 0 for padding


class GlobalBatch(NamedTuple):
    """The batch of a training step: one batch for each tower of this machine, and totals over all machines."""

    shares: tuple[Batch, ...]
    pairs: int  # number of pairs on all machines
    ids: npt.NDArray[np.int64]  # sorted distinct token ids on all machines, including PAD


class Batches:
    """Generates the batches of all epochs in a random order, which is determined by a seed.

    Attributes:
        seed: Random seed for the order.
        buckets: Shapes of the batches.
        pairs: Number of pairs per epoch, the same in every epoch.
        steps_per_epoch: Number of batches per epoch, the same in every epoch.

    Args:
        shards: Shards of pairs; a list of one item if all pairs are in memory.
        batch_size: Number of pairs per batch.
        seed: Random seed for the order.
        batch_tokens: Maximum number of tokens in a batch, including padding; if given, batch_size is ignored. The side
            with more tokens (source or target) counts.
    """

    def __init__(
        self, shards: Sequence[EncodedPairs], batch_size: int, seed: int, batch_tokens: int | None = None
    ) -> None:
        def size(source_length: int, target_length: int) -> int:
            return batch_size if batch_tokens is None else max(1, batch_tokens // max(source_length, target_length))

        self.seed = seed
        self._shards = shards
        self._open_shard = functools.lru_cache(MAPPED_SHARDS)(shards.__getitem__)
        lengths = shards.lengths if isinstance(shards, Shards) else lengths_of(shards)
        self.buckets, self._bucket_of = choose_buckets(lengths, size)
        self.pairs = sum(bucket.pairs for bucket in self.buckets)
        self.steps_per_epoch = sum(bucket.batches for bucket in self.buckets)

    def plan(self, epoch: int, start: int = 0) -> Iterator[tuple[Bucket, Positions]]:
        """Yield the bucket and the positions of the pairs for each batch of an epoch.

        Every pair occurs once per epoch, in an order that depends on the seed and the epoch. Shards are read one after
        another. Pairs of a shard that do not fill a batch are added to the batches of the next shard.

        Args:
            epoch: Index of the epoch, from 0.
            start: Number of batches to skip.
        """
        rng = np.random.default_rng((self.seed, epoch))
        left_over = [np.zeros(0, np.int64) for _ in self.buckets]  # positions of pairs that wait for a full batch
        order = rng.permutation(len(self._shards)).tolist()
        for shard in order:
            pairs = self._open_shard(shard)
            numbers = self._bucket_of[pairs.sources.lengths, pairs.targets.lengths + 1]
            planned: list[tuple[Bucket, npt.NDArray[np.int64]]] = []
            for i, bucket in enumerate(self.buckets):
                rows = rng.permutation(np.flatnonzero(numbers == i))
                # Group sources of similar length, because the longest source of a batch sets the number of encoder
                # steps. NumPy sorts 8-bit and 16-bit integers ten times as fast as int64.
                lengths = pairs.sources.lengths[rows].astype(np.min_scalar_type(bucket.shape[SOURCE]))
                packed = np.concatenate(
                    [left_over[i], _pack_positions(shard, rows[np.argsort(lengths, kind="stable")])]
                )
                last = shard == order[-1]
                full = len(packed) if last else len(packed) - len(packed) % bucket.batch_size
                for first in range(0, full, bucket.batch_size):
                    batch = packed[first : min(first + bucket.batch_size, full)]
                    rng.shuffle(batch)  # otherwise, one tower would get all the long questions
                    planned.append((bucket, batch))
                left_over[i] = packed[full:]
            # Skipped batches are planned as well, because the order of later batches depends on them.
            for i in rng.permutation(len(planned))[start:]:
                bucket, batch = planned[i]
                yield bucket, _unpack_positions(batch)
            start = max(0, start - len(planned))

    def from_step(self, step: int, towers: int, machine: int = 0, machines: int = 1) -> Iterator[GlobalBatch]:
        """Yield batches without end, starting at a step. Each batch is divided among the towers of this machine.

        The number of machines and towers does not change which pairs a global batch contains.

        Args:
            step: Index of the first step, from 0.
            towers: Number of towers per machine.
            machine: Index of this machine.
            machines: Number of machines.
        """
        epoch, start = divmod(step, self.steps_per_epoch)
        while True:
            for _, positions in self.plan(epoch, start):
                yield self._global_batch(positions, towers, machine, machines)
            epoch = epoch + 1
            start = 0

    def _global_batch(self, positions: Positions, towers: int, machine: int, machines: int) -> GlobalBatch:
        """Return the global batch of these pairs. Only the pairs of this machine are loaded and padded."""
        longest = np.zeros(2, np.int64)
        ids = [np.array([PAD, EOS])]
        for shard in np.unique(positions[:, 0]).tolist():
            pairs = self._open_shard(shard).select(positions[positions[:, 0] == shard, 1])
            longest = np.maximum(longest, [pairs.sources.lengths.max(), pairs.targets.lengths.max() + 1])
            ids += [pairs.sources.joined(), pairs.targets.joined(), pairs.begins]
        parts = np.array_split(positions, towers * machines)[machine * towers : (machine + 1) * towers]
        shares = tuple(self._make_share(part, positions, *longest.tolist()) for part in parts)
        return GlobalBatch(shares, len(positions), np.unique(np.concatenate(ids)).astype(np.int64))

    def _make_share(self, part: Positions, batch_positions: Positions, source_length: int, target_length: int) -> Batch:
        if len(part):
            return self._pad(part, source_length, target_length)
        # A tower without pairs gets one pair of weight 0, because cuDNN rejects empty batches.
        return without_weight(self._pad(batch_positions[:1], source_length, target_length))

    def _pad(self, positions: Positions, source_length: int, target_length: int) -> Batch:
        shards, rows = positions.T
        if (shards == shards[0]).all():
            return pad_batch(self._open_shard(int(shards[0])), rows, source_length, target_length)
        by_shard = [positions[shards == shard] for shard in np.unique(shards)]
        batches = [self._pad(part, source_length, target_length) for part in by_shard]
        return Batch(*map(np.concatenate, zip(*batches, strict=True)))


def without_weight(batch: Batch) -> Batch:
    """Return the batch with all weights set to 0."""
    return batch._replace(weights=np.zeros_like(batch.weights))


def split(batch: Batch, pieces: int) -> list[Batch]:
    """Split a batch into parts of nearly equal size. Empty parts are filled with one pair of weight 0."""

    def rows(part: npt.NDArray[np.int64]) -> Batch:
        return Batch(batch.source[part], batch.target_in[part], batch.target_out[part], batch.weights[part])

    parts = np.array_split(np.arange(len(batch.source)), pieces)
    return [rows(part) if len(part) else without_weight(rows(np.array([0]))) for part in parts]


def _pack_positions(shard: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Pack the shard and row of each pair into one integer, because NumPy shuffles single integers faster."""
    return rows + (shard << 32)


def _unpack_positions(packed: npt.NDArray[np.int64]) -> Positions:
    """Return the shard and row of each packed position; the inverse of `_pack_positions`."""
    return np.stack([packed >> 32, packed & 0xFFFFFFFF], axis=1)


def pad_batch(pairs: EncodedPairs, rows: npt.NDArray[np.int64], source_length: int, target_length: int) -> Batch:
    """Return a batch of the pairs in these rows, padded to the given lengths. The target length includes EOS."""
    source = pad(pairs.sources, rows, source_length)
    body = pad(pairs.targets, rows, target_length)
    lengths = pairs.targets.lengths[rows]
    target_in = np.concatenate([pairs.begins[rows, None], body[:, :-1]], axis=1)
    target_out = body.copy()
    target_out[np.arange(len(rows)), lengths] = EOS
    weights = (np.arange(target_length) <= lengths[:, None]).astype(np.float32)
    return Batch(source, target_in, target_out, weights)


def pad(ragged: Ragged, rows: npt.NDArray[np.int64], length: int) -> Ids:
    """Return the rows, right-padded with PAD to shape [rows, length]."""
    padded = np.full((len(rows), length), PAD, np.int32)
    starts = ragged.starts[rows]
    lengths = ragged.lengths[rows]
    is_token = np.arange(length) < lengths[:, None]  # [rows, length]
    index = starts[:, None] + np.arange(length)  # [rows, length]
    padded[is_token] = ragged.flat[index[is_token]]
    return padded
