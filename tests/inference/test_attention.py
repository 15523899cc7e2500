"""The attention weights of a reply, against decoding step by step; words that are spelled in bytes."""

import numpy as np
import pytest
import tensorflow as tf

from chatbot.corpus.vocabulary import BOS
from chatbot.inference.responder import attention_weights, word_attention
from chatbot.inference.text_responder import END, words
from tests.tiny_models import VOCABULARY, tiny

QUESTIONS, REPLIES = [[5, 6, 7], [8], [9, 9, 5, 6, 7]], [[6], [7, 8, 9, 5], []]


@pytest.mark.parametrize("architecture", ["lstm-copy-ngrams", "gru-bahdanau-deep", "transformer-copy"])
def test_weights_of_a_batch_are_those_of_each_step(architecture: str) -> None:
    model = tiny(architecture).trained.model
    found = attention_weights(model, QUESTIONS, REPLIES)
    for weights, question, reply in zip(found, QUESTIONS, REPLIES, strict=True):
        state = model.encode(model.sequences(np.array([question])))
        assert weights.shape == (len(reply) + 1, len(question))
        for token, of_step in zip([BOS, *reply], weights, strict=True):
            state["attention_sums"] = tf.zeros([1, len(question)])
            _, state = model.step(state, tf.constant([token]))
            np.testing.assert_allclose(state["attention_sums"][0], of_step, atol=1e-5)
            assert of_step.sum() == pytest.approx(1, rel=1e-5)
    assert np.ptp(found[2]) > 0.01  # not uniform


def test_bytes_of_a_character_are_one_word() -> None:
    question, reply = VOCABULARY.ids(["ab", "猫", "é", "你"]), VOCABULARY.ids(["😀", "好"])
    assert words(VOCABULARY, question) == [("ab", 1), ("猫", 3), ("é", 2), ("你", 1)]
    assert words(VOCABULARY, reply) == [("😀", 4), ("好", 1)]
    assert words(VOCABULARY, question[:2]) == [("ab", 1), ("\ufffd", 1)]  # truncated
    model = tiny("lstm-copy-ngrams").trained.model
    (found,) = word_attention(model, VOCABULARY, [question], [reply])
    (by_id,) = attention_weights(model, [question], [reply])  # [6, 7]
    assert (found.question, found.reply) == (["ab", "猫", "é", "你"], ["😀", "好", END])
    assert found.weights.shape == (3, 4)
    assert found.weights[0, 1] == pytest.approx(by_id[:4, 1:4].sum(axis=1).mean())
    np.testing.assert_allclose(found.weights.sum(axis=1), 1, rtol=1e-5)
