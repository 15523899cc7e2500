"""Copying: probabilities against a slow twin. test_loss.py has the loss of a mixture, test_seq2seq.py gradients."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.model import operations
from chatbot.model.copying import Copies, copy_log_probabilities, copying_log_softmax, mix_copies, spelling_table

# Token 5 is spelled 6 7, token 8 is spelled 6 6 9; all others are characters.
SPELLINGS = spelling_table([[0], [1], [2], [3], [4], [6, 7], [6], [7], [6, 6, 9], [9]])


def random_copies(seed: int, positions: int, source: int) -> tuple[Copies, np.ndarray]:
    rng = np.random.default_rng(seed)
    actions = rng.dirichlet(np.ones(3), positions)
    weights = rng.dirichlet(np.ones(source), positions)
    question = rng.integers(0, len(SPELLINGS), (positions, source))
    return Copies(*(tf.constant(x, tf.float32) for x in (np.log(actions), weights))), question


def slow_probabilities(logits: np.ndarray, copies: Copies, question: np.ndarray) -> np.ndarray:
    """Add up the probability of each token over all ways to generate or copy it."""
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
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_probabilities_equal_a_slow_twin_and_sum_to_one(
    seed: int, positions: int, source: int, deterministic: bool
) -> None:
    """Includes the sums of segments that replace a scatter on a GPU with deterministic operations."""
    copies, question = random_copies(seed, positions, source)
    rng = np.random.default_rng(seed)
    logits, targets = rng.normal(size=(positions, len(SPELLINGS))), rng.integers(0, len(SPELLINGS), positions)
    expected = slow_probabilities(logits, copies, question)
    np.testing.assert_allclose(expected.sum(axis=1), 1.0, rtol=1e-5)
    arguments = copies, tf.constant(question)
    logits = tf.constant(logits, tf.float32)
    with pytest.MonkeyPatch.context() as patch:
        if deterministic:
            patch.setattr(operations, "is_op_determinism_enabled", lambda: True)
            patch.setattr(tf, "tensor_scatter_nd_add", None)
        actual = copying_log_softmax(logits, *arguments, tf.constant(SPELLINGS), on_gpu=deterministic)
    np.testing.assert_allclose(actual, np.log(expected), atol=1e-5)
    copied = copy_log_probabilities(*arguments, tf.constant(targets), tf.constant(SPELLINGS))
    generated = tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=1)
    expected_targets = np.log(expected[np.arange(positions), targets])
    np.testing.assert_allclose(mix_copies(copies, generated, copied), expected_targets, atol=1e-5)


def test_words_are_spelled_with_known_characters() -> None:
    vocabulary = Vocabulary(["你", "好", "你好", "你们", "▁们", *BYTES])
    names = {token: i for i, token in enumerate(vocabulary.tokens)}
    spellings = vocabulary.spellings()
    assert spellings[names["你好"]] == [names["你"], names["好"]]
    assert spellings[names["你们"]] == [names["你"]]
    assert spellings[names["▁们"]] == [names["▁们"]]  # none of its characters has an id
    assert all(spellings[i] == [i] for i in range(len(vocabulary)) if vocabulary.tokens[i] not in ("你好", "你们"))
