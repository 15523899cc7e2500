"""Copying: probabilities against a slow twin, and gradients against the plain loss."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.config.model import ModelSettings
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.errors import UserError
from chatbot.model.copying import Copies, log_copied, mixture, spelling_table, with_copies
from chatbot.model.loss import LossSize, projection_loss
from chatbot.model.new_model import built_model
from chatbot.model.operations import computed_on
from chatbot.training.selftest import SETTINGS, VOCABULARY
from tests.training.dense_gradients import dense_gradients
from tests.training.test_gradients import batch_of, gradients_of_one_tape

# Token 5 is spelled 6 7, token 8 is spelled 6 6 9; all others are characters.
SPELLINGS = spelling_table([[0], [1], [2], [3], [4], [6, 7], [6], [7], [6, 6, 9], [9]])


def random_copies(seed: int, positions: int, source: int) -> tuple[Copies, np.ndarray]:
    rng = np.random.default_rng(seed)
    actions = rng.dirichlet(np.ones(3), positions)
    weights = rng.dirichlet(np.ones(source), positions)
    question = rng.integers(0, len(SPELLINGS), (positions, source))
    return Copies(*(tf.constant(x, tf.float32) for x in (np.log(actions), weights))), question


def slow_probabilities(logits: np.ndarray, copies: Copies, question: np.ndarray) -> np.ndarray:
    """Each token's probability, added up one way of saying it after another."""
    actions = np.exp(copies.log_actions.numpy().astype(np.float64))
    exponentials = np.exp(logits.astype(np.float64))
    result = actions[:, :1] * exponentials / exponentials.sum(axis=1, keepdims=True)
    for position, ids in enumerate(question):
        for token, weight in zip(ids, copies.weights.numpy()[position], strict=True):
            result[position, token] += actions[position, 1] * weight
            spelled = [i for i in SPELLINGS[token] if i >= 0]
            for character in spelled:
                result[position, character] += actions[position, 2] * weight / len(spelled)
    return result


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4))
def test_probabilities_equal_a_slow_twin_and_sum_to_one(seed: int, positions: int, source: int) -> None:
    copies, question = random_copies(seed, positions, source)
    rng = np.random.default_rng(seed)
    logits, targets = rng.normal(size=(positions, len(SPELLINGS))), rng.integers(0, len(SPELLINGS), positions)
    expected = slow_probabilities(logits, copies, question)
    np.testing.assert_allclose(expected.sum(axis=1), 1.0, rtol=1e-5)
    arguments = copies, tf.constant(question)
    logits = tf.constant(logits, tf.float32)
    actual = with_copies(logits, *arguments, tf.constant(SPELLINGS))
    np.testing.assert_allclose(actual, np.log(expected), atol=1e-5)
    copied = log_copied(*arguments, tf.constant(targets), tf.constant(SPELLINGS))
    generated = tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=1)
    expected_targets = np.log(expected[np.arange(positions), targets])
    np.testing.assert_allclose(mixture(copies, generated, copied), expected_targets, atol=1e-5)


@pytest.mark.parametrize("device", ["/CPU:0", "/GPU:0"])
@pytest.mark.parametrize("chunk", [14, 1000])
def test_fused_loss_of_a_mixture_and_its_gradients_equal_the_plain_ones(chunk: int, device: str) -> None:
    """Also for tokens that cannot be copied, and for some whose softmax underflows."""
    rng = np.random.default_rng(3)
    shapes = (9, 4), (7, 4), (7,), (9,)
    attended, embeddings, bias, generate = (tf.constant(rng.normal(size=s), tf.float32) for s in shapes)
    attended = tf.concat([attended[:8], 300.0 * attended[8:]], 0)
    generate, copied = -tf.exp(generate), tf.constant(np.log(np.where(np.arange(9) % 3, 0.2, 1e-30)), tf.float32)
    targets, weights = tf.constant(rng.integers(0, 7, 9)), tf.constant(rng.choice([0.0, 1.0, 0.3], 9), tf.float32)
    values = [attended, embeddings, bias, generate, copied]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(values)
        logits = tf.matmul(attended, embeddings, transpose_b=True) + bias
        generated = generate + tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=1)
        plain = -tf.reduce_sum(tf.reduce_logsumexp(tf.stack([generated, copied]), 0) * weights)
        with computed_on(device):
            fused = projection_loss(
                attended, embeddings, bias, targets, weights, size=LossSize(chunk), mixture=(generate, copied)
            )
    np.testing.assert_allclose(fused, plain, rtol=1e-5)
    for actual, expected in zip(tape.gradient(fused, values), tape.gradient(plain, values), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-4, rtol=1e-4)


def test_gradients_of_the_fused_loss_equal_those_of_one_tape() -> None:
    spellings = np.stack([np.arange(VOCABULARY), np.roll(np.arange(VOCABULARY), 1)], 1)
    settings = dataclasses.replace(SETTINGS.model, copy=True, bidirectional=False)
    model = built_model(settings, VOCABULARY, 1, spellings=spellings)
    expected_loss, expected = gradients_of_one_tape(model, batch_of(5))
    sums, gradients = dense_gradients(model, batch_of(5))
    for actual, wanted in zip([sums.loss, *gradients], [expected_loss, *expected], strict=True):
        np.testing.assert_allclose(actual, wanted, atol=1e-4, rtol=1e-4)


def test_words_are_spelled_in_the_characters_that_the_vocabulary_has() -> None:
    vocabulary = Vocabulary(["你", "好", "你好", "你们", "▁们", *BYTES])
    names = {token: i for i, token in enumerate(vocabulary.tokens)}
    spellings = vocabulary.spellings()
    assert spellings[names["你好"]] == [names["你"], names["好"]]
    assert spellings[names["你们"]] == [names["你"]]
    assert spellings[names["▁们"]] == [names["▁们"]]  # none of its characters has an id
    assert all(spellings[i] == [i] for i in range(len(vocabulary)) if vocabulary.tokens[i] not in ("你好", "你们"))


def test_what_copying_excludes_is_named() -> None:
    with pytest.raises(UserError, match="--copy: needs attention"):
        ModelSettings(copy=True, attention="none")
    with pytest.raises(UserError, match="--copy and --sampled-softmax exclude each other"):
        ModelSettings(copy=True, sampled_softmax=5)
