"""Inverse token frequency: the weights against a slow count, and in batches."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.batching.batches import Batches
from chatbot.corpus.batching.token_weights import inverse_frequency_weights, target_counts
from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.vocabulary import EOS

VOCABULARY = 12
TARGETS = st.lists(st.lists(st.integers(5, VOCABULARY - 1), min_size=1, max_size=5), min_size=1, max_size=30)


def pairs_of(targets: list[list[int]]) -> EncodedPairs:
    """Pairs with these targets, whose sources are the token 5."""
    sources = Ragged.from_rows([[5]] * len(targets))
    return EncodedPairs.question_to_answer(sources, Ragged.from_rows(targets), np.array([len(t) for t in targets]))


@given(TARGETS, st.sampled_from([0.4, 1.0, 2.0]), st.integers(1, 3))
def test_weights_of_an_epoch_equal_a_slow_count(targets: list[list[int]], exponent: float, towers: int) -> None:
    """In shares of ragged size."""
    counted = Counter(token for target in targets for token in [*target, EOS])
    inverse = {token: (1 / count) ** exponent for token, count in counted.items()}
    mean = sum(inverse[token] * count for token, count in counted.items()) / sum(counted.values())

    pairs = pairs_of(targets)
    weights = inverse_frequency_weights(target_counts([pairs], VOCABULARY), exponent)
    batches = Batches([pairs], 4, seed=1, token_weights=weights)
    plain = Batches([pairs], 4, seed=1)
    for expected, batch in islice(
        zip(plain.from_step(0, towers), batches.from_step(0, towers), strict=True), plain.steps_per_epoch
    ):
        for before, share in zip(expected.shares, batch.shares, strict=True):
            of_tokens = np.vectorize(lambda token: inverse.get(token, 0.0) / mean)(share.target_out)
            np.testing.assert_allclose(share.weights, before.weights * of_tokens, rtol=1e-5)


def test_mean_weight_is_one_and_rare_tokens_weigh_more() -> None:
    targets = [[5, 6], [5], [5, 7]]
    counts = target_counts([pairs_of(targets[:1]), pairs_of(targets[1:])], VOCABULARY)
    assert counts[[EOS, 5, 6, 7, 8]].tolist() == [3, 3, 1, 1, 0]
    weights = inverse_frequency_weights(counts, 1.0)
    assert weights[6] == weights[7] == pytest.approx(3 * weights[5])
    assert weights @ counts == pytest.approx(counts.sum())
