"""Buckets, padding, shares: every pair once an epoch, on one shape a step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.batches import MOST_BUCKETS, Batches, choose_buckets, pad_batch
from chatbot.corpus.encoded import Encoded, encode, ragged
from chatbot.corpus.vocabulary import ASK, BOS, EOS, PAD, Vocabulary

ROWS = st.lists(st.integers(4, 99), min_size=1, max_size=12)
PAIRS = st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=80)


def encoded(pairs: list[tuple[list[int], list[int]]]) -> Encoded:
    """Pairs of ids as the trainer holds them."""
    sources, targets = zip(*pairs, strict=True)
    lengths = np.array([len(t) for t in targets])
    return Encoded(ragged(sources), ragged(targets), np.full(len(pairs), BOS, np.int32), lengths)


def test_encode_counts_characters_without_spaces() -> None:
    vocabulary = Vocabulary(["你好", "好", "吗", "\u2581"])
    pairs = encode([(["你好"], ["好", "\u2581吗"])], vocabulary)
    assert pairs.targets.row(0).tolist() == [6, 8, 7]
    assert pairs.characters.tolist() == [2]


def test_pad_batch() -> None:
    batch = pad_batch(encoded([([7], [8, 9]), ([5, 6], [4])]), np.array([1, 0]), 3, 4)
    assert batch.source.tolist() == [[5, 6, PAD], [7, PAD, PAD]]
    assert batch.target_in.tolist() == [[BOS, 4, PAD, PAD], [BOS, 8, 9, PAD]]
    assert batch.target_out.tolist() == [[4, EOS, PAD, PAD], [8, 9, EOS, PAD]]
    assert batch.weights.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]


def test_reversed_pairs_begin_with_another_symbol() -> None:
    pairs = encoded([([7], [8, 9])])
    batch = pad_batch(pairs + pairs.reversed(), np.array([0, 1]), 2, 3)
    assert batch.source.tolist() == [[7, PAD], [8, 9]]
    assert batch.target_in.tolist() == [[BOS, 8, 9], [ASK, 7, PAD]]
    assert batch.target_out.tolist() == [[8, 9, EOS], [7, EOS, PAD]]


def test_pad_batch_of_the_exact_length_has_no_padding() -> None:
    batch = pad_batch(encoded([([7], [8, 9])]), np.array([0]), 1, 3)
    assert batch.target_out.tolist() == [[8, 9, EOS]]
    assert batch.weights.all()


@given(PAIRS, st.integers(1, 7))
def test_buckets_hold_every_pair_once_and_fit(pairs: list, batch_size: int) -> None:
    data = encoded(pairs)
    sources, targets = data.sources.lengths, data.targets.lengths + 1
    buckets = choose_buckets(sources, targets, batch_size)
    assert 1 <= len(buckets) <= MOST_BUCKETS
    assert sorted(np.concatenate([b.rows for b in buckets])) == list(range(len(pairs)))
    for bucket in buckets:
        assert sources[bucket.rows].max() == bucket.source_length
        assert targets[bucket.rows].max() == bucket.target_length


def test_buckets_of_realistic_lengths_pad_little() -> None:
    rng = np.random.default_rng(0)
    sources, targets = rng.geometric(0.1, 10_000).clip(1, 50), rng.geometric(0.15, 10_000).clip(2, 50)
    buckets = choose_buckets(sources, targets, 64)
    padded = sum(len(b.rows) * (b.source_length + b.target_length) for b in buckets)
    assert (sources.sum() + targets.sum()) / padded > 0.55
    assert (sources.sum() + targets.sum()) / (10_000 * 100) < 0.2  # what one shape for all would give


@given(PAIRS, st.integers(1, 9), st.integers(1, 4), st.integers(0, 3))
def test_an_epoch_shows_every_pair_to_one_tower_once(pairs: list, size: int, towers: int, epoch: int) -> None:
    batches = Batches(encoded([([4 + i], [4 + i]) for i in range(len(pairs))]), size, seed=1)
    seen = []
    shares_of = batches.shares_from(epoch * batches.steps_per_epoch, towers)
    for _ in range(batches.steps_per_epoch):
        shares = next(shares_of)
        assert len(shares) == towers
        assert len({s.source.shape[1] for s in shares}) == 1
        assert max(len(s.source) for s in shares) - min(len(s.source) for s in shares) <= 1
        for share in shares:
            assert (share.source[:, 0] != PAD).all()  # cuDNN takes no row that is all padding
            seen += share.source[share.weights[:, 0] > 0, 0].tolist()
    assert sorted(seen) == [4 + i for i in range(len(pairs))]


def test_the_order_is_seeded_and_changes_with_the_epoch() -> None:
    data = encoded([([4 + i], [4]) for i in range(50)])

    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate([rows for _, rows in Batches(data, 8, seed).plan(epoch)]).tolist()

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(2, 0)
    assert order(1, 0) != order(1, 1)


@pytest.mark.parametrize("step", [0, 1, 6, 7, 20])
def test_any_step_can_be_begun_at(step: int) -> None:
    batches = Batches(encoded([([4 + i], [4]) for i in range(50)]), 8, seed=1)
    whole, late = batches.shares_from(0, 2), batches.shares_from(step, 2)
    for _ in range(step):
        next(whole)
    for _ in range(10):
        for ours, theirs in zip(next(late), next(whole), strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_prefetched_batches_are_the_same() -> None:
    batches = Batches(encoded([([4 + i], [4]) for i in range(20)]), 8, seed=1)
    expected = batches.shares_from(2, 2)
    for shares in batches.prefetched(2, 2).take(5):
        for tensors, share in zip(shares, next(expected), strict=True):
            assert all(np.array_equal(t, a) for t, a in zip(tensors, share, strict=True))
