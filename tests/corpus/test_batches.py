"""Buckets, padding, shares, order: each pair once per epoch, in one of few shapes, for any shards and machines."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.batches import MAX_BUCKETS, Batch, Batches, choose_buckets, pad_batch
from chatbot.corpus.pair_ids import EncodedPairs, Ragged, lengths_of
from chatbot.corpus.vocabulary import ASK, BOS, EOS, PAD

# Batches are endless: a test that waits for one that never comes fails after this many seconds.
pytestmark = pytest.mark.timeout(60)


def pairs_of(pairs: list[tuple[list[int], list[int]]]) -> EncodedPairs:
    """Encoded pairs of these ids."""
    sources, targets = zip(*pairs, strict=True)
    return EncodedPairs.question_to_answer(
        Ragged.from_rows(sources), Ragged.from_rows(targets), np.array([len(t) for t in targets])
    )


def numbered(count: int, shards: int = 1) -> list[EncodedPairs]:
    """Pairs whose only source token is their number from 5, in shards of different sizes."""
    parts = [[([5 + i], [5] * (i % 3 + 1)) for i in range(count) if i * i % shards == s] for s in range(shards)]
    return [pairs_of(part) for part in parts if part]


def epoch_of(batches: Batches, epoch: int, towers: int) -> list[tuple[Batch, ...]]:
    """The shares of one epoch. `from_step` would not return from an epoch without a batch, so they are counted."""
    assert len(list(batches.plan(epoch))) == batches.steps_per_epoch > 0
    first = batches.from_step(epoch * batches.steps_per_epoch, towers)
    return [batch.shares for batch in islice(first, batches.steps_per_epoch)]


def numbers_in(shares: tuple[Batch, ...]) -> list[int]:
    """The numbers of the pairs in these shares."""
    return [n for share in shares for n in share.source[share.weights[:, 0] > 0, 0].tolist()]


def test_pairs_are_padded_to_the_given_lengths_and_reversed_ones_begin_with_ask() -> None:
    pairs = pairs_of([([7], [8, 9]), ([5, 6], [4])])
    batch = pad_batch(pairs + pairs.reversed(), np.array([1, 0, 2]), 3, 3)
    assert batch.source.tolist() == [[5, 6, PAD], [7, PAD, PAD], [8, 9, PAD]]
    assert batch.target_in.tolist() == [[BOS, 4, PAD], [BOS, 8, 9], [ASK, 7, PAD]]
    assert batch.target_out.tolist() == [[4, EOS, PAD], [8, 9, EOS], [7, EOS, PAD]]
    assert batch.weights.tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 0]]


@given(st.integers(1, 90), st.integers(1, 4), st.integers(1, 9), st.integers(1, 4), st.integers(0, 3))
def test_epoch_contains_every_pair_once(count: int, shards: int, size: int, towers: int, epoch: int) -> None:
    batches = Batches(numbered(count, shards), size, seed=1)
    seen = []
    for shares in epoch_of(batches, epoch, towers):
        assert len(shares) == towers
        assert len({s.source.shape[1] for s in shares}) == 1
        assert max(len(s.source) for s in shares) - min(len(s.source) for s in shares) <= 1
        for share in shares:
            assert (share.source[:, 0] != PAD).all()  # cuDNN refuses a row of padding only
        seen += numbers_in(shares)
    assert sorted(seen) == [5 + i for i in range(count)]


def test_machines_split_the_batches_of_one_machine() -> None:
    pairs = numbered(100, shards=3)
    one_machine = Batches(pairs, 12, seed=1).from_step(3, towers=4)
    machines = [Batches(pairs, 12, seed=1).from_step(3, 2, machine, machines=2) for machine in range(2)]
    for _ in range(30):
        expected, *parts = (next(batches) for batches in (one_machine, *machines))
        actual = [part.shares for part in parts]
        for share, expected_share in zip(actual[0] + actual[1], expected.shares, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(share, expected_share, strict=True))
        assert {part.pairs for part in parts} == {expected.pairs}
        assert all(np.array_equal(part.ids, expected.ids) for part in parts)  # of the whole batch, on every machine
        assert not set(numbers_in(actual[0])) & set(numbers_in(actual[1]))


def test_token_batches_have_similar_numbers_of_positions() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, 4000)
    pairs = pairs_of([([5] * int(n), [5] * int(n)) for n in lengths])
    batches = Batches([pairs], 64, seed=1, batch_tokens=400)
    positions = [bucket.batch_size * max(bucket.shape) for bucket in batches.buckets]
    assert all(400 - 41 <= p <= 400 for p in positions)
    assert len({bucket.batch_size for bucket in batches.buckets}) > 3
    seen = sum(len(share.source) for (share,) in epoch_of(batches, 0, towers=1))
    assert seen == 4000
    # And at least one pair.
    batches = Batches([pairs_of([([5] * 30, [5] * 30)] * 3)], 64, 1, batch_tokens=10)
    assert batches.buckets[0].batch_size == 1
    first, second = epoch_of(batches, 0, towers=2)[0]
    assert (first.weights.sum(), second.weights.sum()) == (31, 0)  # a tower without a pair has a row of weight 0


def test_shares_have_the_lengths_of_the_longest_pair_of_the_batch() -> None:
    """And the ids of the batch are known, each once: padding and the end symbol, too."""
    batches = Batches([pairs_of([([7], [8]), ([5, 6, 7], [9, 9]), ([5], [6])])], 3, seed=1)
    batch = next(batches.from_step(0, 3))
    assert {(share.source.shape, share.target_in.shape) for share in batch.shares} == {((1, 3), (1, 3))}
    assert batch.ids.tolist() == sorted([PAD, BOS, EOS, 5, 6, 7, 8, 9])
    assert batch.pairs == 3


def earlier_plan(batches: Batches, pairs: list[EncodedPairs], epoch: int) -> list[list[list[int]]]:
    """The positions of each batch in the order of the first release; a resumed attempt goes on in this order.

    It depends on the seed and the epoch: of the shards, of the batches of a shard, and of the pairs of a batch. The
    pairs of a batch have questions of similar length.
    """
    rng = np.random.default_rng((batches.seed, epoch))
    left_over = [np.zeros((0, 2), np.int64) for _ in batches.buckets]
    order, epoch_plan = rng.permutation(len(pairs)).tolist(), []
    for shard in order:
        planned = []
        buckets = batches._bucket_of[pairs[shard].sources.lengths, pairs[shard].targets.lengths + 1]
        for i, bucket in enumerate(batches.buckets):
            rows = rng.permutation(np.flatnonzero(buckets == i))
            rows = rows[np.argsort(pairs[shard].sources.lengths[rows], kind="stable")]
            positions = np.concatenate([left_over[i], np.stack([np.full_like(rows, shard), rows], axis=1)])
            size = bucket.batch_size
            full = len(positions) if shard == order[-1] else len(positions) - len(positions) % size
            planned += [rng.permutation(positions[start : min(start + size, full)]) for start in range(0, full, size)]
            left_over[i] = positions[full:]
        epoch_plan += [planned[i].tolist() for i in rng.permutation(len(planned))]
    return epoch_plan


@pytest.mark.parametrize("longest", [20, 300])  # lengths of one byte, and of two
def test_order_of_batches_is_that_of_earlier_versions(longest: int) -> None:
    lengths = np.random.default_rng(2).integers(1, longest, (4, 50, 2))
    pairs = [pairs_of([([5] * int(source), [5] * int(target)) for source, target in part]) for part in lengths]
    batches = Batches(pairs, 6, seed=3)
    assert len(batches.buckets) > 2
    expected = earlier_plan(batches, pairs, 1)
    assert earlier_plan(batches, pairs, 0) != expected
    for start in (0, 1, 9, len(expected) - 1, len(expected)):
        assert [positions.tolist() for _, positions in batches.plan(1, start)] == expected[start:]


@pytest.mark.parametrize("step", [1, 7, 20])
def test_batches_from_any_step_equal_those_of_a_full_run(step: int) -> None:
    batches = Batches(numbered(50, 3), 8, seed=1)
    full, resumed = batches.from_step(0, 2), batches.from_step(step, 2)
    for _ in range(step):
        next(full)
    for _ in range(10):
        for share, expected_share in zip(next(resumed).shares, next(full).shares, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(share, expected_share, strict=True))


LENGTHS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=200)


def of_lengths(lengths: list[tuple[int, int]]) -> EncodedPairs:
    """Pairs of these lengths."""
    return pairs_of([([5] * source, [5] * target) for source, target in lengths])


@given(LENGTHS, st.integers(1, 7))
def test_every_pair_fits_in_exactly_one_bucket(lengths: list[tuple[int, int]], batch_size: int) -> None:
    pairs = of_lengths(lengths)
    buckets, numbers = choose_buckets(lengths_of([pairs]), lambda source, target: batch_size)
    assert 1 <= len(buckets) <= MAX_BUCKETS
    bucket_of = numbers[pairs.sources.lengths, pairs.targets.lengths + 1]
    for number, bucket in enumerate(buckets):
        members = np.flatnonzero(bucket_of == number)
        assert bucket.pairs == len(members)
        assert bucket.shape == (pairs.sources.lengths[members].max(), pairs.targets.lengths[members].max() + 1)


def test_realistic_lengths_have_little_padding() -> None:
    rng = np.random.default_rng(0)
    sources, targets = rng.geometric(0.1, 10_000).clip(1, 50), rng.geometric(0.15, 10_000).clip(1, 49)
    lengths = lengths_of([of_lengths([*zip(sources.tolist(), targets.tolist(), strict=True)])])

    def real_share(batch_size: int) -> tuple[float, float]:
        """The share of source and of target positions that are not padding."""
        buckets, _ = choose_buckets(lengths, lambda source, target: batch_size)
        padded = [sum(bucket.pairs * bucket.shape[side] for bucket in buckets) for side in (0, 1)]
        return sources.sum() / padded[0], (targets + 1).sum() / padded[1]

    of_source, of_target = real_share(64)
    assert of_source > 0.35
    assert of_target > 0.75
    assert max(real_share(10_000)) < 0.22  # with one shape for all
