"""At most eight shapes, which fit every pair with little padding."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chatbot.config.corpus import CorpusSettings, EncodingSettings
from chatbot.corpus.batches import MAX_BUCKETS, Bucket, choose_buckets
from chatbot.corpus.dataset import training_set
from chatbot.corpus.pair_ids import EncodedPairs, Ragged, lengths_of

LENGTHS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=200)


def pairs_of(lengths: list[tuple[int, int]]) -> EncodedPairs:
    """Pairs of these lengths."""
    sources, targets = (Ragged.from_rows([[5] * pair[side] for pair in lengths]) for side in (0, 1))
    return EncodedPairs.question_to_answer(sources, targets, targets.lengths)


def buckets_of(pairs: EncodedPairs, batch_size: int) -> list[Bucket]:
    """The buckets for batches of one size."""
    return choose_buckets(lengths_of([pairs]), lambda source, target: batch_size)[0]


@given(LENGTHS, st.integers(1, 7))
def test_every_pair_fits_in_exactly_one_bucket(lengths: list[tuple[int, int]], batch_size: int) -> None:
    pairs = pairs_of(lengths)
    buckets, numbers = choose_buckets(lengths_of([pairs]), lambda source, target: batch_size)
    assert 1 <= len(buckets) <= MAX_BUCKETS
    bucket_of = numbers[pairs.sources.lengths, pairs.targets.lengths + 1]
    for number, bucket in enumerate(buckets):
        members = np.flatnonzero(bucket_of == number)
        assert bucket.pairs == len(members)
        assert bucket.shape == (pairs.sources.lengths[members].max(), pairs.targets.lengths[members].max() + 1)


@given(st.lists(LENGTHS, min_size=1, max_size=4))
def test_lengths_are_counted_over_shards(parts: list[list[tuple[int, int]]]) -> None:
    lengths = lengths_of([pairs_of(part) for part in parts])
    actual = {(int(s), int(t) - 1): int(n) for (s, t), n in zip(lengths.sides.T, lengths.counts, strict=True)}
    all_lengths = [pair for part in parts for pair in part]
    assert actual == {pair: all_lengths.count(pair) for pair in all_lengths}


def real_share(pairs: EncodedPairs, buckets: list[Bucket]) -> tuple[float, float]:
    """The share of source and of target positions that are not padding."""
    sides = pairs.sources.lengths.sum(), (pairs.targets.lengths + 1).sum()
    padded = [sum(bucket.pairs * bucket.shape[side] for bucket in buckets) for side in (0, 1)]
    return sides[0] / padded[0], sides[1] / padded[1]


def test_realistic_lengths_have_little_padding() -> None:
    rng = np.random.default_rng(0)
    sources, targets = rng.geometric(0.1, 10_000).clip(1, 50), rng.geometric(0.15, 10_000).clip(1, 49)
    pairs = pairs_of([*zip(sources.tolist(), targets.tolist(), strict=True)])
    of_source, of_target = real_share(pairs, buckets_of(pairs, 64))
    assert of_source > 0.35
    assert of_target > 0.75
    assert max(real_share(pairs, buckets_of(pairs, 10_000))) < 0.22  # with one shape for all


def test_chat_targets_have_little_padding(chat_file: Path, tmp_path: Path) -> None:
    corpus = training_set(CorpusSettings(data=(str(chat_file),), cache=str(tmp_path)), EncodingSettings())
    pairs = corpus.shards[0].within(20)
    buckets = buckets_of(pairs, 4)
    assert len(buckets) <= MAX_BUCKETS
    assert real_share(pairs, buckets)[1] >= 0.93
    assert real_share(pairs, buckets_of(pairs, len(pairs)))[1] < 0.60  # one shape for all
