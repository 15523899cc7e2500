"""At most eight shapes, which hold every pair and pad little."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.buckets import MOST_BUCKETS, Bucket, choose_buckets, lengths_of
from chatbot.corpus.encoded import Encoded, encoded, ragged

LENGTHS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=200)


def pairs_of(lengths: list[tuple[int, int]]) -> Encoded:
    """Pairs of these lengths."""
    sources, targets = (ragged([[5] * pair[side] for pair in lengths]) for side in (0, 1))
    return encoded(sources, targets, targets.lengths)


def buckets_of(pairs: Encoded, batch_size: int) -> list[Bucket]:
    """The buckets for batches of one size."""
    return choose_buckets(lengths_of([pairs]), lambda source, target: batch_size)


@given(LENGTHS, st.integers(1, 7))
def test_every_pair_is_in_one_bucket_and_fits(lengths: list[tuple[int, int]], batch_size: int) -> None:
    pairs = pairs_of(lengths)
    buckets = buckets_of(pairs, batch_size)
    assert 1 <= len(buckets) <= MOST_BUCKETS
    rows = [bucket.rows(pairs) for bucket in buckets]
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(pairs)))
    for bucket, inside in zip(buckets, rows, strict=True):
        assert bucket.pairs == len(inside)
        assert bucket.shape == (pairs.sources.lengths[inside].max(), pairs.targets.lengths[inside].max() + 1)


@given(st.lists(LENGTHS, min_size=1, max_size=4))
def test_lengths_are_counted_over_shards(parts: list[list[tuple[int, int]]]) -> None:
    lengths = lengths_of([pairs_of(part) for part in parts])
    found = {(int(s), int(t) - 1): int(n) for (s, t), n in zip(lengths.sides.T, lengths.counts, strict=True)}
    everything = [pair for part in parts for pair in part]
    assert found == {pair: everything.count(pair) for pair in everything}


def test_realistic_lengths_are_padded_little() -> None:
    rng = np.random.default_rng(0)
    sources, targets = rng.geometric(0.1, 10_000).clip(1, 50), rng.geometric(0.15, 10_000).clip(1, 49)
    buckets = buckets_of(pairs_of([*zip(sources.tolist(), targets.tolist(), strict=True)]), 64)
    padded = sum(bucket.pairs * sum(bucket.shape) for bucket in buckets)
    assert (sources.sum() + targets.sum() + 10_000) / padded > 0.55
    assert (sources.sum() + targets.sum() + 10_000) / (10_000 * 100) < 0.2  # what one shape for all would give
