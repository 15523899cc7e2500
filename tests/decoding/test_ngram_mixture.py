"""N-grams, of tensors and arrays, against a slow twin, and validation that mixes them in."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import ASK, BOS, EOS
from chatbot.decoding.ngram_mixture import NgramMixture
from chatbot.decoding.ngrams import count_ngrams
from chatbot.evaluation.likelihood import Scorer
from chatbot.training.selftest import VOCABULARY
from tests.decoding.kneser_ney import SlowKneserNey, grams_of
from tests.tiny_models import tiny


def sequences(seed: int, number: int) -> list[list[int]]:
    """Sequences of a few ids, some of which are frequent."""
    rng = np.random.default_rng(seed)
    return [(rng.zipf(1.5, rng.integers(1, 7)).clip(1, 6) + 4).tolist() for _ in range(number)]


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(2, 4))
def test_probabilities_equal_a_slow_twin_and_sum_to_one(seed: int, number: int, order: int) -> None:
    """From two shards. One history is known, one is not."""
    rows = sequences(seed, number)
    shards = [Ragged.from_rows(part) for part in (rows[: number // 2], rows[number // 2 :]) if part]
    grams = grams_of(rows, order, BOS, EOS)
    slow = SlowKneserNey(grams, order, VOCABULARY)
    rng = np.random.default_rng(seed)
    histories = [grams[int(rng.integers(len(grams)))][:-1], tuple(rng.integers(5, VOCABULARY, order - 1).tolist())]
    mixture = NgramMixture(count_ngrams(shards, VOCABULARY, order), 0.3)
    known = tf.constant(histories, tf.int64)
    actual = mixture.probabilities(known)
    expected = [[slow.probability(history, token) for token in range(VOCABULARY)] for history in histories]
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    np.testing.assert_allclose(tf.reduce_sum(actual, -1), 1.0, atol=1e-5)
    of_arrays, ids = mixture.probabilities(known.numpy()), np.arange(VOCABULARY)[None]
    np.testing.assert_allclose(of_arrays, actual, rtol=1e-6)
    np.testing.assert_array_equal(mixture.probabilities_of(known, ids), actual)
    np.testing.assert_array_equal(mixture.probabilities_of(known.numpy(), ids), of_arrays)


def test_validation_mixes_them_in_for_both_directions() -> None:
    model, rows = tiny("lstm-copy-ngrams"), [[6, 7, 9], [9, 10, 5]]
    begins, questions = np.array([BOS, ASK], np.int32), Ragged.from_rows([[5, 8], [7]])
    pairs = EncodedPairs(questions, Ragged.from_rows(rows), begins, np.array([3, 3]))
    nats = 0.0
    for question, reply, begin in zip([[5, 8], [7]], rows, begins.tolist(), strict=True):
        for place, token in enumerate([*reply, EOS]):
            by_model = np.exp(model.oracle.next_id(question, [begin, *reply[:place]])[token])
            assert model.oracle.ngrams is not None
            by_ngrams = model.oracle.ngrams([BOS, *reply[:place]])[token]
            weight = model.oracle.ngram_weight
            nats -= np.log((1 - weight) * by_model + weight * by_ngrams)
    assert Scorer(model.trained.model)([pairs]).nats == pytest.approx(nats, rel=1e-5)
