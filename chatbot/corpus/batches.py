"""Buckets: at most eight shapes that pairs are padded to, chosen from the lengths to keep padding low."""

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
# A bucket with fewer batches loses more by its last, partial batch than it saves on padding.
MIN_BATCHES = 4

# The cost of a padded position of the source and of the target. With equal costs a third of the target positions of
# short chat would be padding; docs/experiments.md compares several costs.
COSTS = np.array([[1], [6]])


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Pairs that are padded to one shape."""

    shape: tuple[int, int]  # its longest source and target, EOS counted
    pairs: int
    batch_size: int  # pairs of a batch

    @property
    def batches(self) -> int:
        return math.ceil(self.pairs / self.batch_size)


def choose_buckets(
    lengths: Lengths, batch_size: Callable[[int, int], int]
) -> tuple[list[Bucket], npt.NDArray[np.int8]]:
    """Return at most MAX_BUCKETS shapes for all pairs, and the number of the bucket of each combination of lengths.

    Starts from one bucket. Repeatedly makes the cut of a bucket along source or target length that saves the most
    padding, until no cut leaves MIN_BATCHES full batches on both sides.

    batch_size: the function from source and target length to the number of pairs in a batch. The numbers are [source +
    1, target + 1], EOS counted; those of combinations that no pair has mean nothing.
    """
    groups = [np.arange(len(lengths.counts))]  # the combinations of each bucket
    while len(groups) < MAX_BUCKETS:
        cuts = [(*_best_cut(lengths, group, batch_size), i) for i, group in enumerate(groups)]
        saved, side, bound, i = max(cuts)
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


def _best_cut(
    lengths: Lengths, combinations: npt.NDArray[np.int64], batch_size: Callable[[int, int], int]
) -> tuple[int, int, int]:
    """Return (cost saved, side, bound) of the best cut of one box; the cost saved is 0 if no cut is allowed."""
    best = (0, 0, 0)
    sides = lengths.sides[:, combinations]
    counts = lengths.counts[combinations]
    min_pairs = MIN_BATCHES * batch_size(*map(int, sides.max(axis=1)))
    for side in (SOURCE, TARGET):
        order = np.argsort(sides[side], kind="stable")
        ordered = sides[:, order]
        below = np.cumsum(counts[order])
        costs = ordered * COSTS
        # Cost of a pair padded to the longest combination up to each one, and from each one on, both [combinations].
        low = np.maximum.accumulate(costs, axis=1).sum(axis=0)
        high = np.maximum.accumulate(costs[:, ::-1], axis=1)[:, ::-1].sum(axis=0)
        inside = below[:-1]
        outside = below[-1] - below[:-1]
        saved = high[0] * below[-1] - (low[:-1] * inside + high[1:] * outside)
        distinct = ordered[side, :-1] < ordered[side, 1:]
        allowed = distinct & (inside >= min_pairs) & (outside >= min_pairs)
        if allowed.any():
            cut = int(np.argmax(np.where(allowed, saved, -1)))
            best = max(best, (int(saved[cut]), side, int(ordered[side, cut])))
    return best


# The number of shards that stay mapped into memory: the current shard, and shards with left-over pairs.
MAPPED_SHARDS = 4

Positions = npt.NDArray[np.int64]  # [pairs, 2] the shard and the row of each pair


class Batch(NamedTuple):
    """Padded pairs. All shares of a batch have the lengths of its longest source and target."""

    source: Ids  # [rows, source_length]
    target_in: Ids  # [rows, target_length], BOS or ASK first
    target_out: Ids  # [rows, target_length], EOS last
    weights: npt.NDArray[np.float32]  # [rows, target_length], 1 for a token, 0 at padding


class GlobalBatch(NamedTuple):
    """The batch of a step: the shares of this machine's towers, and what all machines know of the whole."""

    shares: tuple[Batch, ...]
    pairs: int  # of all machines
    ids: npt.NDArray[np.int64]  # sorted, each once: PAD, and all ids in the sources and targets of all machines


class Batches:
    """The batches of every epoch, in a seeded order.

    shards: the pairs; a list of one item if all are in memory.
    batch_size: the number of pairs in a batch.
    batch_tokens: instead of batch_size, the padded positions on the longer side of a batch.
    pairs, steps_per_epoch: the pairs and the batches of an epoch, the same numbers in every epoch.
    """

    def __init__(
        self, shards: Sequence[EncodedPairs], batch_size: int, seed: int, batch_tokens: int | None = None
    ) -> None:
        def size(source_length: int, target_length: int) -> int:
            return batch_size if batch_tokens is None else max(1, batch_tokens // max(source_length, target_length))

        self.seed = seed
        self._shards = shards
        self._mapped = functools.lru_cache(MAPPED_SHARDS)(shards.__getitem__)
        lengths = shards.lengths if isinstance(shards, Shards) else lengths_of(shards)
        self.buckets, self._bucket_of = choose_buckets(lengths, size)
        self.pairs = sum(bucket.pairs for bucket in self.buckets)
        self.steps_per_epoch = sum(bucket.batches for bucket in self.buckets)

    def plan(self, epoch: int, start: int = 0) -> Iterator[tuple[Bucket, Positions]]:
        """Yield (bucket, positions of its pairs) for each batch of an epoch from `start` on, shuffled by (seed, epoch).

        Every pair occurs once.
        The shards follow one another in a new order each epoch. Within a shard the batches of all buckets are
        shuffled; pairs that do not fill a batch are left over for the next shard.
        """
        rng = np.random.default_rng((self.seed, epoch))
        left_over = [np.zeros(0, np.int64) for _ in self.buckets]  # as _joined
        order = rng.permutation(len(self._shards)).tolist()
        for shard in order:
            pairs = self._mapped(shard)
            numbers = self._bucket_of[pairs.sources.lengths, pairs.targets.lengths + 1]
            planned: list[tuple[Bucket, npt.NDArray[np.int64]]] = []
            for i, bucket in enumerate(self.buckets):
                rows = rng.permutation(np.flatnonzero(numbers == i))
                # Questions of similar length share a batch, since the longest one sets the number of encoder steps.
                # NumPy sorts integers of one or two bytes by radix, ten times as fast as int64.
                lengths = pairs.sources.lengths[rows].astype(np.min_scalar_type(bucket.shape[SOURCE]))
                joined = np.concatenate([left_over[i], _joined(shard, rows[np.argsort(lengths, kind="stable")])])
                last = shard == order[-1]
                full = len(joined) if last else len(joined) - len(joined) % bucket.batch_size
                for first in range(0, full, bucket.batch_size):
                    batch = joined[first : min(first + bucket.batch_size, full)]
                    rng.shuffle(batch)  # otherwise one tower would get all the long questions
                    planned.append((bucket, batch))
                left_over[i] = joined[full:]
            # Every batch before `start` is planned, too, since the order of the later ones depends on it.
            for i in rng.permutation(len(planned))[start:]:
                bucket, batch = planned[i]
                yield bucket, _split(batch)
            start = max(0, start - len(planned))

    def from_step(self, step: int, towers: int, machine: int = 0, machines: int = 1) -> Iterator[GlobalBatch]:
        """Yield each batch, divided into a share for each tower of this machine, endlessly.

        step: the first step, counted from 0. towers: the number of towers on each machine. The pairs of a batch do not
        depend on the number of machines and towers.
        """
        epoch, done = divmod(step, self.steps_per_epoch)
        while True:
            for _, positions in self.plan(epoch, done):
                yield self._global_batch(positions, towers, machine, machines)
            epoch = epoch + 1
            done = 0

    def _global_batch(self, positions: Positions, towers: int, machine: int, machines: int) -> GlobalBatch:
        """Return a batch of these pairs. A machine pads only its own shares."""
        longest = np.zeros(2, np.int64)
        ids = [np.array([PAD, EOS])]
        for shard in np.unique(positions[:, 0]).tolist():
            pairs = self._mapped(shard).select(positions[positions[:, 0] == shard, 1])
            longest = np.maximum(longest, [pairs.sources.lengths.max(), pairs.targets.lengths.max() + 1])
            ids += [pairs.sources.joined(), pairs.targets.joined(), pairs.begins]
        parts = np.array_split(positions, towers * machines)[machine * towers : (machine + 1) * towers]
        shares = tuple(self._share(part, positions, *longest.tolist()) for part in parts)
        return GlobalBatch(shares, len(positions), np.unique(np.concatenate(ids)).astype(np.int64))

    def _share(self, part: Positions, batch_positions: Positions, source_length: int, target_length: int) -> Batch:
        if len(part):
            return self._read(part, source_length, target_length)
        # cuDNN accepts no empty batch: a tower without pairs gets one row of weight 0.
        return without_weight(self._read(batch_positions[:1], source_length, target_length))

    def _read(self, positions: Positions, source_length: int, target_length: int) -> Batch:
        shards, rows = positions.T
        if (shards == shards[0]).all():
            return pad_batch(self._mapped(int(shards[0])), rows, source_length, target_length)
        by_shard = [positions[shards == shard] for shard in np.unique(shards)]
        batches = [self._read(part, source_length, target_length) for part in by_shard]
        return Batch(*map(np.concatenate, zip(*batches, strict=True)))


def without_weight(batch: Batch) -> Batch:
    """Return the batch with weights of 0."""
    return batch._replace(weights=np.zeros_like(batch.weights))


def split(batch: Batch, pieces: int) -> list[Batch]:
    """Divide the rows into pieces of about equal size. A piece without a row gets the first one, with weights of 0."""

    def rows(part: npt.NDArray[np.int64]) -> Batch:
        return Batch(batch.source[part], batch.target_in[part], batch.target_out[part], batch.weights[part])

    parts = np.array_split(np.arange(len(batch.source)), pieces)
    return [rows(part) if len(part) else without_weight(rows(np.array([0]))) for part in parts]


def _joined(shard: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions of rows of a shard as one number each, which NumPy shuffles faster than two: [rows]."""
    return rows + (shard << 32)


def _split(joined: npt.NDArray[np.int64]) -> Positions:
    """Undo `_joined`."""
    return np.stack([joined >> 32, joined & 0xFFFFFFFF], axis=1)


def pad_batch(pairs: EncodedPairs, rows: npt.NDArray[np.int64], source_length: int, target_length: int) -> Batch:
    """Return the pairs in these rows, padded to the given lengths, EOS counted in the target."""
    source = pad(pairs.sources, rows, source_length)
    body = pad(pairs.targets, rows, target_length)
    lengths = pairs.targets.lengths[rows]
    target_in = np.concatenate([pairs.begins[rows, None], body[:, :-1]], axis=1)
    target_out = body.copy()
    target_out[np.arange(len(rows)), lengths] = EOS
    weights = (np.arange(target_length) <= lengths[:, None]).astype(np.float32)
    return Batch(source, target_in, target_out, weights)


def pad(ragged: Ragged, rows: npt.NDArray[np.int64], length: int) -> Ids:
    """Return the given rows as an array [rows, length], with PAD on the right."""
    padded = np.full((len(rows), length), PAD, np.int32)
    starts = ragged.starts[rows]
    lengths = ragged.lengths[rows]
    real = np.arange(length) < lengths[:, None]  # [rows, length]
    index = starts[:, None] + np.arange(length)  # [rows, length]
    padded[real] = ragged.flat[index[real]]
    return padded
