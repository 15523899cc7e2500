"""From encoded pairs to padded batches of a few fixed shapes, one share a tower.

Everything is a function of (pairs, settings, step): the batch of any step can be computed again,
so a resumed run needs to know only at which step it was.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.corpus.encoded import Encoded, Ids, Offsets, Ragged
from chatbot.corpus.vocabulary import EOS, PAD

MOST_BUCKETS = 8
# A bucket with fewer batches than this wastes more on its last, partial batch than it saves on padding.
LEAST_BATCHES = 4


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Pairs that are padded to one shape."""

    source_length: int
    target_length: int  # EOS counted
    rows: npt.NDArray[np.int64]  # [pairs in the bucket]


class Batch(NamedTuple):
    """Padded pairs. All arrays have the bucket's static length; only the row count varies."""

    source: Ids  # [rows, source_length]
    target_in: Ids  # [rows, target_length], the begin symbol first
    target_out: Ids  # [rows, target_length], EOS last
    weights: npt.NDArray[np.float32]  # [rows, target_length], 1 at real tokens and 0 at padding


def choose_buckets(source_lengths: Offsets, target_lengths: Offsets, batch_size: int) -> list[Bucket]:
    """Split the pairs into at most MOST_BUCKETS shapes so that little is padded.

    Starting from one box that holds all pairs, the cut along source or target length that saves the
    most padding is made until no cut leaves LEAST_BATCHES full batches on both sides.

    source_lengths, target_lengths: [pairs], in tokens, EOS counted in the target.
    """
    sides = np.stack([source_lengths, target_lengths])  # [2, pairs]
    boxes = [np.arange(sides.shape[1])]
    while len(boxes) < MOST_BUCKETS:
        cuts = [(*_best_cut(sides[:, box], LEAST_BATCHES * batch_size), i) for i, box in enumerate(boxes)]
        saved, side, bound, i = max(cuts)
        if saved <= 0:
            break
        inside = sides[side, boxes[i]] <= bound
        boxes[i : i + 1] = [boxes[i][inside], boxes[i][~inside]]
    return [Bucket(int(sides[0, b].max()), int(sides[1, b].max()), b) for b in boxes]


def _best_cut(lengths: npt.NDArray[np.integer], least: int) -> tuple[int, int, int]:
    """(padded positions saved, side, bound) of the best cut of one box; saves 0 when none is allowed."""
    best = (0, 0, 0)
    pairs = lengths.shape[1]
    for side in (0, 1):
        order = np.argsort(lengths[side], kind="stable")
        sorted_sides = lengths[:, order]
        low = np.maximum.accumulate(sorted_sides, axis=1).sum(axis=0)  # [pairs] size of the box up to here
        high = np.maximum.accumulate(sorted_sides[:, ::-1], axis=1)[:, ::-1].sum(axis=0)
        count = np.arange(1, pairs)
        saved = high[0] * pairs - (low[:-1] * count + high[1:] * (pairs - count))
        distinct = sorted_sides[side, :-1] < sorted_sides[side, 1:]
        allowed = distinct & (count >= least) & (pairs - count >= least)
        if allowed.any():
            at = int(np.argmax(np.where(allowed, saved, -1)))
            best = max(best, (int(saved[at]), side, int(sorted_sides[side, at])))
    return best


class Batches:
    """The batches of every epoch, in a seeded order.

    steps_per_epoch: batches in an epoch, the same in each.
    """

    def __init__(self, pairs: Encoded, batch_size: int, seed: int) -> None:
        self.pairs = pairs
        self.batch_size = batch_size
        self.seed = seed
        lengths = pairs.sources.lengths, pairs.targets.lengths + 1
        self.buckets = choose_buckets(*lengths, batch_size)
        self.steps_per_epoch = sum(math.ceil(len(b.rows) / batch_size) for b in self.buckets)

    def plan(self, epoch: int) -> list[tuple[Bucket, npt.NDArray[np.int64]]]:
        """The (bucket, rows) of each batch of an epoch: every pair once, in an order of (seed, epoch)."""
        rng = np.random.default_rng((self.seed, epoch))
        planned = []
        for bucket in self.buckets:
            rows = rng.permutation(bucket.rows)
            parts = range(0, len(rows), self.batch_size)
            planned += [(bucket, rows[i : i + self.batch_size]) for i in parts]
        return [planned[i] for i in rng.permutation(len(planned))]

    def shares_from(self, step: int, towers: int) -> Iterator[tuple[Batch, ...]]:
        """The shares of each batch, one a tower, from this step (counted from 0) on, without end."""
        epoch, done = divmod(step, self.steps_per_epoch)
        while True:
            for bucket, rows in self.plan(epoch)[done:]:
                lengths = bucket.source_length, bucket.target_length
                yield tuple(self._share(part, rows, *lengths) for part in np.array_split(rows, towers))
            epoch, done = epoch + 1, 0

    def _share(self, part: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], *lengths: int) -> Batch:
        if len(part):
            return pad_batch(self.pairs, part, *lengths)
        # cuDNN takes no empty batch: a tower without a share gets a row that weighs nothing.
        batch = pad_batch(self.pairs, rows[:1], *lengths)
        return batch._replace(weights=np.zeros_like(batch.weights))

    def prefetched(self, step: int, towers: int) -> tf.data.Dataset:
        """`shares_from` made ahead of the training loop, as plain tuples of tensors in Batch's order."""
        ids, weights = (tf.TensorSpec([None, None], kind) for kind in (tf.int32, tf.float32))
        return tf.data.Dataset.from_generator(
            lambda: (tuple(map(tuple, shares)) for shares in self.shares_from(step, towers)),
            output_signature=((ids, ids, ids, weights),) * towers,
        ).prefetch(4)


def pad_batch(pairs: Encoded, rows: npt.NDArray[np.int64], source_length: int, target_length: int) -> Batch:
    """Pad the pairs with these numbers to the given lengths (EOS counted in the target)."""
    source = pad(pairs.sources, rows, source_length)
    body = pad(pairs.targets, rows, target_length)
    lengths = pairs.targets.lengths[rows]
    target_in = np.concatenate([pairs.begins[rows, None], body[:, :-1]], axis=1)
    target_out = body.copy()
    target_out[np.arange(len(rows)), lengths] = EOS
    weights = (np.arange(target_length) <= lengths[:, None]).astype(np.float32)
    return Batch(source, target_in, target_out, weights)


def pad(ragged: Ragged, rows: npt.NDArray[np.int64], length: int) -> Ids:
    """[rows, length] the given rows, PAD on the right."""
    padded = np.full((len(rows), length), PAD, np.int32)
    starts, lengths = ragged.offsets[rows], ragged.lengths[rows]
    real = np.arange(length) < lengths[:, None]  # [rows, length]
    at = starts[:, None] + np.arange(length)
    padded[real] = ragged.flat[at[real]]
    return padded
