"""Replies to ids: batches, distinct candidates, tokens that are never generated, characters that are complete."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.corpus.vocabulary import ASK, BOS, BYTES, EOS, PAD, UNK, Vocabulary
from chatbot.inference import replier as module
from chatbot.inference.replier import Replier
from chatbot.inference.responder import TensorFlowModel
from chatbot.model.new_model import built_model
from chatbot.model.seq2seq import Seq2Seq

VOCABULARY = Vocabulary(["你好", "你", "好", "吗", *BYTES])
SETTINGS = ModelSettings(rnn_size=8, embedding_size=6, max_length=6)


@pytest.fixture
def model() -> Seq2Seq:
    """An untrained model."""
    return built_model(SETTINGS, len(VOCABULARY), seed=1)


@functools.cache
def shared_replier(beam_size: int) -> tuple[Seq2Seq, Replier]:
    """An untrained model, and its replies by a search that is traced once. A test sets bias and embeddings."""
    model = built_model(SETTINGS, len(VOCABULARY), seed=1)
    return model, Replier(TensorFlowModel(model), VOCABULARY, SETTINGS, DecodingSettings(beam_size=beam_size))


@pytest.mark.parametrize("beam_size", [1, 4])
def test_replies_do_not_depend_on_batch_and_search_is_traced_once(
    model: Seq2Seq, monkeypatch: pytest.MonkeyPatch, beam_size: int
) -> None:
    model.embedding.embeddings.assign(np.random.default_rng(1).normal(size=model.embedding.embeddings.shape))
    replier = Replier(TensorFlowModel(model), VOCABULARY, SETTINGS, DecodingSettings(beam_size=beam_size))
    questions = [[5], [6, 7, 8], [8] * 100, [UNK], [7, 7]]
    batched = replier.replies(questions)
    assert batched == [replier.replies([question])[0] for question in questions]
    assert len(set(batched)) > 1
    monkeypatch.setattr(module, "BATCH", 2)
    assert replier.replies(questions) == batched
    assert replier.replies([]) == []
    assert replier.search.graph.traces == 1  # type: ignore[attr-defined]


def test_beam_search_gathers_no_memory_and_no_keys(model: Seq2Seq) -> None:
    """At each token, only recurrent states follow their hypotheses: of float tensors, those of rank 2."""
    search: Any = Replier(TensorFlowModel(model), VOCABULARY, SETTINGS, DecodingSettings(beam_size=4)).search
    graph = search.graph.concrete.graph
    bodies = [[*function.graph.get_operations()] for function in graph._functions.values()]
    (body,) = (body for body in bodies if any(node.type == "TopKV2" for node in body))  # of the loop over tokens
    inputs = [node.inputs[0] for node in body if node.type == "GatherV2"]
    assert {x.shape.rank for x in inputs if x.dtype == tf.float32} == {2}


def test_candidates_are_distinct_and_sorted_by_score(model: Seq2Seq) -> None:
    """The text 你好 is one token or two."""
    model.bias.assign(tf.concat([tf.fill([VOCABULARY.first_byte], 9.0), tf.zeros([len(BYTES)])], 0))
    replier = Replier(
        TensorFlowModel(model), VOCABULARY, dataclasses.replace(SETTINGS, max_length=3), DecodingSettings(beam_size=40)
    )
    (candidates,) = replier.candidates([VOCABULARY.ids(["你好"])])
    texts, scores, *_ = zip(*candidates, strict=True)
    assert "你好" in texts
    assert len(set(texts)) == len(texts)
    assert list(scores) == sorted(scores, reverse=True)
    assert np.isfinite(scores).all()
    assert replier.replies([VOCABULARY.ids(["你好"])]) == [texts[0]]


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("token", [PAD, BOS, UNK, ASK])
def test_special_tokens_are_not_generated(beam_size: int, token: int) -> None:
    """Even if it is the most probable one, with EOS second: the reply would be short or empty."""
    model, replier = shared_replier(beam_size)
    model.bias.assign(tf.one_hot(token, len(VOCABULARY), 50.0) + tf.one_hot(EOS, len(VOCABULARY), 20.0))
    (reply,) = replier.replies([[5]])
    assert reply


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("end", [-5.0, 20.0])
def test_characters_in_bytes_are_complete(beam_size: int, seed: int, end: float) -> None:
    """The model prefers bytes in any order, and the end in the midst of them, or no end before the maximum length."""
    model, replier = shared_replier(beam_size)
    first = VOCABULARY.first_byte
    generator = np.random.default_rng(seed)
    bias = np.zeros(len(VOCABULARY))
    bias[first:] = 10 + generator.normal(size=len(BYTES))
    bias[first + 0xC0 :] += 10
    bias[EOS] = end
    model.bias.assign(bias)
    model.embedding.embeddings.assign(generator.normal(size=model.embedding.embeddings.shape))
    (candidates,) = replier.candidates([[5, 6]])
    assert candidates
    for text, *_ in candidates:
        assert text.strip()
        assert "\ufffd" not in text
        assert text.splitlines() == [text]
        assert any(len(character.encode()) > 1 and character not in "你好吗" for character in text)
