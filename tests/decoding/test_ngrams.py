"""N-grams, of tensors and arrays, against a slow twin, and a model that mixes them in."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus.ngrams import ngrams_of
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import ASK, BOS, EOS
from chatbot.decoding.ngrams import NgramMixture
from chatbot.evaluation.likelihood import Scorer
from chatbot.model.new_model import built_model
from chatbot.training.selftest import SETTINGS, VOCABULARY
from tests.corpus.kneser_ney import SlowKneserNey, grams_of


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
    mixture = NgramMixture(ngrams_of(shards, VOCABULARY, order), 0.3)
    known = tf.constant(histories, tf.int64)
    actual = mixture.probabilities(known)
    expected = [[slow.probability(history, token) for token in range(VOCABULARY)] for history in histories]
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    np.testing.assert_allclose(tf.reduce_sum(actual, -1), 1.0, atol=1e-5)
    of_arrays, ids = mixture.probabilities(known.numpy()), np.arange(VOCABULARY)[None]
    np.testing.assert_allclose(of_arrays, actual, rtol=1e-6)
    np.testing.assert_array_equal(mixture.probabilities_of(known, ids), actual)
    np.testing.assert_array_equal(mixture.probabilities_of(known.numpy(), ids), of_arrays)


@pytest.mark.parametrize("copy", [False, True])
def test_decoding_and_scoring_mix_both(copy: bool) -> None:
    """Two hypotheses a row, one of each direction."""
    rng = np.random.default_rng(1)
    source, reply = rng.integers(5, VOCABULARY, (2, 3)), rng.integers(5, VOCABULARY, (4, 3))
    replies = Ragged.from_rows(reply.tolist())
    model_settings = dataclasses.replace(SETTINGS.model, copy=copy)
    plain = built_model(model_settings, VOCABULARY, seed=1)
    ngrams = ngrams_of([replies], VOCABULARY, 3)
    mixing = dataclasses.replace(model_settings, ngrams=3, ngram_weight=0.3)
    model = built_model(mixing, VOCABULARY, seed=1, ngrams=ngrams)
    slow = SlowKneserNey(grams_of(reply.tolist(), 3, BOS, EOS), 3, VOCABULARY)
    begins = np.array([BOS, ASK, BOS, ASK])
    target_in = np.concatenate([begins[:, None], reply], axis=1)
    target_out = np.concatenate([reply, np.full((4, 1), EOS)], axis=1)
    (state, copied), (plain_state, plain_copied) = (
        [m.encode(m.sequences(ids)) for ids in (source, np.repeat(source, 2, axis=0))] for m in (model, plain)
    )
    state["cells"], plain_state["cells"] = copied["cells"], plain_copied["cells"]
    state["history"] = copied["history"]
    of_mixture, of_plain = (m.attention_weights(m.sequences(source), m.sequences(source)) for m in (model, plain))
    np.testing.assert_array_equal(of_mixture, of_plain)
    nats = 0.0
    for position in range(4):
        ids = tf.constant(target_in[:, position], tf.int32)
        log_probabilities, state = model.step(state, ids)
        logits, plain_state = plain.step(plain_state, ids)
        by_ngrams = [
            [slow.probability(tuple([BOS, BOS, *reply[row]][position : position + 2]), t) for t in range(VOCABULARY)]
            for row in range(4)
        ]
        expected = 0.7 * tf.nn.softmax(logits).numpy() + 0.3 * np.array(by_ngrams)
        np.testing.assert_allclose(tf.exp(log_probabilities), expected, rtol=1e-4)
        nats -= np.log(expected[np.arange(4), target_out[:, position]]).sum()
    questions = Ragged.from_rows(np.repeat(source, 2, axis=0).tolist())
    pairs = EncodedPairs(questions, replies, begins.astype(np.int32), replies.lengths)
    assert Scorer(model)([pairs]).nats == pytest.approx(nats, rel=1e-5)
