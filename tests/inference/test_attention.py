"""The attention weights of a reply, against decoding step by step; words that are spelled in bytes."""

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import BOS, BYTES, Vocabulary
from chatbot.flags import compose
from chatbot.inference.responder import attention_weights, word_attention
from chatbot.inference.text_responder import END, words
from chatbot.model.new_model import built_model
from chatbot.model.seq2seq import Seq2Seq

VOCABULARY = Vocabulary([*"你好吗啊", "你好", *BYTES])
QUESTIONS, REPLIES = [[5, 6, 7], [8], [9, 9, 5, 6, 7]], [[6], [7, 8, 9, 5], []]


def trained_model(**settings: object) -> Seq2Seq:
    """A model whose attention is far from uniform."""
    model = built_model(compose(Settings, rnn_size=8, embedding_size=6, **settings).model, len(VOCABULARY), seed=2)
    for variable in model.trainable_variables:
        variable.assign(4 * variable)
    return model


def slow_weights(model: Seq2Seq, question: list[int], reply: list[int]) -> list[np.ndarray]:
    """The weights at each token of the reply and at its end: one step at a time, scores by the query of that step."""
    state = model.encode(model.sequences(np.array([question])))
    found = []
    for token in [BOS, *reply]:
        outputs, cells = model.decoder.stack.step(model.embed(tf.constant([token])), state["cells"])
        attention = model.decoder.attention
        assert attention is not None
        scores = attention.scores(outputs[:, None], state["keys"]).numpy()[0, 0].astype(np.float64)
        exp = np.exp(scores - scores.max())
        found.append(exp / exp.sum())
        state = {**state, "cells": cells}
    return found


@pytest.mark.parametrize("settings", [{}, {"attention": "bahdanau", "plain_layers": True, "cell": "gru"}])
def test_weights_of_a_batch_equal_those_of_single_steps(settings: dict[str, object]) -> None:
    model = trained_model(**settings)
    found = attention_weights(model, QUESTIONS, REPLIES)
    for weights, question, reply in zip(found, QUESTIONS, REPLIES, strict=True):
        assert weights.shape == (len(reply) + 1, len(question))
        np.testing.assert_allclose(weights, slow_weights(model, question, reply), atol=1e-5)
        np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    assert np.ptp(found[2]) > 0.01  # not uniform


def test_bytes_of_a_character_are_one_word() -> None:
    question, reply = VOCABULARY.ids(["你好", "猫", "é", "吗"]), VOCABULARY.ids(["😀", "好"])
    assert words(VOCABULARY, question) == [("你好", 1), ("猫", 3), ("é", 2), ("吗", 1)]
    assert words(VOCABULARY, reply) == [("😀", 4), ("好", 1)]
    assert words(VOCABULARY, question[:2]) == [("你好", 1), ("\ufffd", 1)]  # truncated
    model = trained_model()
    (found,) = word_attention(model, VOCABULARY, [question], [reply])
    (by_id,) = attention_weights(model, [question], [reply])  # [6, 7]
    assert (found.question, found.reply) == (["你好", "猫", "é", "吗"], ["😀", "好", END])
    assert found.weights.shape == (3, 4)
    assert found.weights[0, 1] == pytest.approx(by_id[:4, 1:4].sum(axis=1).mean())
    np.testing.assert_allclose(found.weights.sum(axis=1), 1, rtol=1e-5)
