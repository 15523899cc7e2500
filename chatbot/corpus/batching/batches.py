"""From shards of encoded pairs to padded batches of a few fixed shapes, one share a tower.

Everything is a function of (pairs, settings, step): the batch of any step can be computed again,
so a resumed run needs to know only at which step it was, and several machines agree on each batch
without a word between them.
"""

import functools
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.corpus.batching.buckets import Bucket, choose_buckets, lengths_of
from chatbot.corpus.encoding.encoded_pairs import EncodedPairs, Ids
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.vocabulary import EOS, PAD
from chatbot.errors import UserError

# Shards that are kept mapped: the one an epoch is at, and some whose last pairs wait for a full batch.
MAPPED = 4

# Batches that are made before they are asked for.
AHEAD = 4

Shares = tuple[tuple[tf.Tensor, ...], ...]  # a batch as tensors, one share a tower
Places = npt.NDArray[np.int64]  # [pairs, 2] the shard and the row of each pair


class Batch(NamedTuple):
    """Padded pairs. All arrays have the bucket's static length; only the row count varies."""

    source: Ids  # [rows, source_length]
    target_in: Ids  # [rows, target_length], the begin symbol first
    target_out: Ids  # [rows, target_length], EOS last
    weights: npt.NDArray[np.float32]  # [rows, target_length], 1 at real tokens and 0 at padding


class Batches:
    """The batches of every epoch, in a seeded order.

    shards: the pairs; a list with one item where all are in memory.
    batch_tokens: instead of batch_size, the padded positions of a batch's longer side.
    steps_per_epoch: batches in an epoch, the same in each.
    """

    def __init__(
        self, shards: Sequence[EncodedPairs], batch_size: int, seed: int, batch_tokens: int | None = None
    ) -> None:
        def size(source_length: int, target_length: int) -> int:
            return batch_size if batch_tokens is None else max(1, batch_tokens // max(source_length, target_length))

        self.seed = seed
        self._shards = shards
        self._mapped = functools.lru_cache(MAPPED)(shards.__getitem__)
        self.buckets = choose_buckets(lengths_of(shards), size)
        self.steps_per_epoch = sum(bucket.batches for bucket in self.buckets)

    def plan(self, epoch: int) -> Iterator[tuple[Bucket, Places]]:
        """The bucket and the pairs of each batch of an epoch: every pair once, in an order of (seed, epoch).

        Shards come one after the other, in a new order each epoch. In a shard the batches of all buckets are
        mixed; pairs that do not fill a batch wait for the next shard.
        """
        rng = np.random.default_rng((self.seed, epoch))
        waiting = [np.zeros((0, 2), np.int64) for _ in self.buckets]
        order = rng.permutation(len(self._shards)).tolist()
        for shard in order:
            planned: list[tuple[Bucket, Places]] = []
            for i, bucket in enumerate(self.buckets):
                pairs = self._mapped(shard)
                rows = rng.permutation(bucket.rows(pairs))
                # Questions of about one length share a batch: it is done after as many steps as the longest has.
                rows = rows[np.argsort(pairs.sources.lengths[rows], kind="stable")]
                places = np.concatenate([waiting[i], np.stack([np.full_like(rows, shard), rows], axis=1)])
                last = shard == order[-1]
                full = len(places) if last else len(places) - len(places) % bucket.batch_size
                starts = range(0, full, bucket.batch_size)
                # In a batch they are mixed again, so that no tower gets all the long ones.
                parts = (places[at : min(at + bucket.batch_size, full)] for at in starts)
                planned += [(bucket, rng.permutation(part)) for part in parts]
                waiting[i] = places[full:]
            yield from (planned[i] for i in rng.permutation(len(planned)))

    def shares_from(self, step: int, towers: int, machine: int = 0, machines: int = 1) -> Iterator[tuple[Batch, ...]]:
        """The shares of each batch, one a tower, from this step (counted from 0) on, without end.

        Of several machines with so many towers each, this one reads and gets only its own shares. What a batch
        holds does not depend on how many machines and towers share it.
        """
        epoch, done = divmod(step, self.steps_per_epoch)
        while True:
            for bucket, places in islice(self.plan(epoch), done, None):
                parts = np.array_split(places, towers * machines)[machine * towers : (machine + 1) * towers]
                yield tuple(self._share(part, places, *bucket.shape) for part in parts)
            epoch, done = epoch + 1, 0

    def _share(self, part: Places, places: Places, source_length: int, target_length: int) -> Batch:
        if len(part):
            return self._read(part, source_length, target_length)
        # cuDNN takes no empty batch: a tower without a share gets a row that weighs nothing.
        batch = self._read(places[:1], source_length, target_length)
        return batch._replace(weights=np.zeros_like(batch.weights))

    def _read(self, places: Places, source_length: int, target_length: int) -> Batch:
        shards, rows = places.T
        if (shards == shards[0]).all():
            return pad_batch(self._mapped(int(shards[0])), rows, source_length, target_length)
        of_shards = [places[shards == shard] for shard in np.unique(shards)]
        batches = [self._read(some, source_length, target_length) for some in of_shards]
        return Batch(*map(np.concatenate, zip(*batches, strict=True)))

    def prefetched(self, step: int, towers: int, machine: int = 0, machines: int = 1) -> Iterator[Shares]:
        """`shares_from` made ahead of the training loop, as plain tuples of tensors in Batch's order."""
        failures: list[UserError] = []

        def shares() -> Iterator[tuple[tuple[Any, ...], ...]]:
            try:
                yield from (tuple(map(tuple, s)) for s in self.shares_from(step, towers, machine, machines))
            except UserError as error:  # which tf.data would turn into one of its own
                failures.append(error)

        ids, weights = (tf.TensorSpec([None, None], kind) for kind in (tf.int32, tf.float32))
        signature = ((ids, ids, ids, weights),) * towers
        yield from tf.data.Dataset.from_generator(shares, output_signature=signature).prefetch(AHEAD)
        raise failures[0]


def pad_batch(pairs: EncodedPairs, rows: npt.NDArray[np.int64], source_length: int, target_length: int) -> Batch:
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
    starts, lengths = ragged.starts[rows], ragged.lengths[rows]
    real = np.arange(length) < lengths[:, None]  # [rows, length]
    at = starts[:, None] + np.arange(length)
    padded[real] = ragged.flat[at[real]]
    return padded
