"""Padding, shares, order: every pair once an epoch, on one shape a step, whatever the shards and machines."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.batching.batches import Batch, Batches, pad_batch
from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.vocabulary import ASK, BOS, EOS, PAD
from chatbot.errors import UserError

ROWS = st.lists(st.integers(5, 99), min_size=1, max_size=12)
PAIRS = st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=80)


def pairs_of(pairs: list[tuple[list[int], list[int]]]) -> EncodedPairs:
    """Pairs of ids as the trainer holds them."""
    sources, targets = zip(*pairs, strict=True)
    return EncodedPairs.question_to_answer(
        Ragged.from_rows(sources), Ragged.from_rows(targets), np.array([len(t) for t in targets])
    )


def numbered(count: int, shards: int = 1) -> list[EncodedPairs]:
    """Pairs whose only source token is their own number from 5, dealt to shards of uneven size."""
    dealt = [[([5 + i], [5] * (i % 3 + 1)) for i in range(count) if i * i % shards == s] for s in range(shards)]
    return [pairs_of(part) for part in dealt if part]


def numbers_in(shares: tuple[Batch, ...]) -> list[int]:
    """Which of the numbered pairs were seen."""
    return [n for share in shares for n in share.source[share.weights[:, 0] > 0, 0].tolist()]


def test_pad_batch() -> None:
    batch = pad_batch(pairs_of([([7], [8, 9]), ([5, 6], [4])]), np.array([1, 0]), 3, 4)
    assert batch.source.tolist() == [[5, 6, PAD], [7, PAD, PAD]]
    assert batch.target_in.tolist() == [[BOS, 4, PAD, PAD], [BOS, 8, 9, PAD]]
    assert batch.target_out.tolist() == [[4, EOS, PAD, PAD], [8, 9, EOS, PAD]]
    assert batch.weights.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]


def test_reversed_pairs_begin_with_another_symbol() -> None:
    pairs = pairs_of([([7], [8, 9])])
    batch = pad_batch(pairs + pairs.reversed(), np.array([0, 1]), 2, 3)
    assert batch.source.tolist() == [[7, PAD], [8, 9]]
    assert batch.target_in.tolist() == [[BOS, 8, 9], [ASK, 7, PAD]]
    assert batch.target_out.tolist() == [[8, 9, EOS], [7, EOS, PAD]]


def test_pad_batch_of_the_exact_length_has_no_padding() -> None:
    batch = pad_batch(pairs_of([([7], [8, 9])]), np.array([0]), 1, 3)
    assert batch.target_out.tolist() == [[8, 9, EOS]]
    assert batch.weights.all()


@given(st.integers(1, 90), st.integers(1, 4), st.integers(1, 9), st.integers(1, 4), st.integers(0, 3))
def test_an_epoch_shows_every_pair_to_one_tower_once(
    count: int, shards: int, size: int, towers: int, epoch: int
) -> None:
    batches = Batches(numbered(count, shards), size, seed=1)
    seen = []
    shares_of = batches.shares_from(epoch * batches.steps_per_epoch, towers)
    for shares in islice(shares_of, batches.steps_per_epoch):
        assert len(shares) == towers
        assert len({s.source.shape[1] for s in shares}) == 1
        assert max(len(s.source) for s in shares) - min(len(s.source) for s in shares) <= 1
        for share in shares:
            assert (share.source[:, 0] != PAD).all()  # cuDNN takes no row that is all padding
        seen += numbers_in(shares)
    assert sorted(seen) == [5 + i for i in range(count)]


@pytest.mark.parametrize("shards", [1, 3])
def test_machines_share_the_batches_of_one(shards: int) -> None:
    pairs = numbered(100, shards)
    alone = Batches(pairs, 12, seed=1).shares_from(3, towers=4)
    machines = [Batches(pairs, 12, seed=1).shares_from(3, 2, machine, machines=2) for machine in range(2)]
    for _ in range(30):
        expected = next(alone)
        found = [next(machine) for machine in machines]
        for ours, theirs in zip(expected, found[0] + found[1], strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert not set(numbers_in(found[0])) & set(numbers_in(found[1]))


def test_a_machine_copies_the_tokens_of_its_own_pairs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []

    def counting(pairs: EncodedPairs, rows: np.ndarray, source_length: int, target_length: int) -> Batch:
        copied.extend(pairs.sources.row(row)[0] for row in rows)
        return pad_batch(pairs, rows, source_length, target_length)

    monkeypatch.setattr("chatbot.corpus.batching.batches.pad_batch", counting)
    batches = Batches(numbered(96), 12, seed=1)
    for shares in islice(batches.shares_from(0, 2, machine=1, machines=3), batches.steps_per_epoch):
        assert numbers_in(shares) == copied
        copied.clear()


def test_batches_by_tokens_hold_as_many_positions_whatever_the_length() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, 4000)
    pairs = pairs_of([([5] * int(n), [5] * int(n)) for n in lengths])
    batches = Batches([pairs], 64, seed=1, batch_tokens=400)
    positions = [bucket.batch_size * max(bucket.shape) for bucket in batches.buckets]
    assert all(400 - 41 <= p <= 400 for p in positions)
    assert len({bucket.batch_size for bucket in batches.buckets}) > 3
    seen = sum(len(share.source) for (share,) in islice(batches.shares_from(0, 1), batches.steps_per_epoch))
    assert seen == 4000


def test_a_batch_by_tokens_has_one_pair_at_least() -> None:
    pairs = pairs_of([([5] * 30, [5] * 30)] * 3)
    batches = Batches([pairs], 64, 1, batch_tokens=10)
    assert batches.buckets[0].batch_size == 1
    first, second = next(batches.shares_from(0, towers=2))
    assert (first.weights.sum(), second.weights.sum()) == (31, 0)  # a tower without a pair has a row without weight


def test_shards_that_are_removed_meanwhile_are_a_line() -> None:
    class Removed(list[EncodedPairs]):
        def __getitem__(self, index: Any) -> Any:
            if self.gone:
                raise UserError("removed")
            return super().__getitem__(index)

        gone = False

    shards = Removed(numbered(40, 8))
    batches = Batches(shards, 4, seed=1)
    shards.gone = True
    with pytest.raises(UserError, match="removed"):
        list(batches.prefetched(0, 1))


def test_the_order_is_seeded_and_changes_with_the_epoch() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = Batches(numbered(50, 3), 8, seed)
        return np.concatenate([places for _, places in batches.plan(epoch)]).tolist()

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(2, 0)
    assert order(1, 0) != order(1, 1)


@pytest.mark.parametrize("step", [0, 1, 6, 7, 20])
def test_any_step_can_be_begun_at(step: int) -> None:
    batches = Batches(numbered(50, 3), 8, seed=1)
    whole, late = batches.shares_from(0, 2), batches.shares_from(step, 2)
    for _ in range(step):
        next(whole)
    for _ in range(10):
        for ours, theirs in zip(next(late), next(whole), strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_prefetched_batches_are_the_same() -> None:
    batches = Batches(numbered(20), 8, seed=1)
    expected = batches.shares_from(2, 2)
    for shares in islice(batches.prefetched(2, 2), 5):
        for tensors, share in zip(shares, next(expected), strict=True):
            assert all(np.array_equal(t, a) for t, a in zip(tensors, share, strict=True))
