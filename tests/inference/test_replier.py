"""Replies of each architecture against the oracle; batches, graphs, and what a model does not admit."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import ASK, BOS
from chatbot.decoding.interface import score_pairs
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.inference import replier as module
from chatbot.inference.tensorflow_model import TensorFlowModel, replier_for
from tests.inference.messages import reply_of
from tests.oracle import likelihood
from tests.tiny_models import ARCHITECTURES, LENGTH, Table, sources_of, tiny

QUESTIONS = [[8] * 9, [9, 10, 5]]
ALL_TOKENS: dict[str, Any] = {
    "repetition_penalty": 1.5,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.3,
    "no_repeat_ngram": 2,
    "min_reply_length": 3,
    "ban": ("你", "ba"),
    "anti_lm": 0.5,
    "anti_lm_tokens": 2,
}
BEAM: dict[str, Any] = {"beam_size": 4, "length_penalty": 0.7}
# What the state of a model goes through; test_search.py of decoding has all settings together.
SEARCHES: dict[str, dict[str, Any]] = {
    "lstm-copy-ngrams": {"candidates": 2, "rerank": 0.5},
    "gru-bahdanau-deep": {**BEAM, "no_repeat_ngram": 2},
    "lstm-copy-untied": {"temperature": 0.8, "top_k": 100, "top_p": 0.95, "min_p": 0.001, **ALL_TOKENS},
    "lstm-none": {**BEAM, "rerank": 0.5, **ALL_TOKENS},
    "transformer-copy": {"beam_size": 2, "length_penalty": 0.7},
    "transformer-distances": {"beam_size": 3, "anti_lm": 0.4, "anti_lm_tokens": 2},
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_replies_of_each_architecture_are_those_of_the_oracle(architecture: str) -> None:
    """By the graph of a search in a batch and alone, which is traced once; token by token for single replies."""
    model, decoding = tiny(architecture), DecodingSettings(**SEARCHES[architecture])
    replier = replier_for(model.trained, decoding)
    found = replier.candidates(sources_of(QUESTIONS))
    for question, replies in zip(QUESTIONS, found, strict=True):
        expected = model.oracle.candidates(decoding, question)
        assert [reply.text for reply in replies] == [text for text, _ in expected]
        scores = [reply.score for reply in replies]
        np.testing.assert_allclose(scores, [score for _, score in expected], rtol=1e-3, atol=1e-3)
        assert [reply.text for reply in replier.candidates(sources_of([question]))[0]] == [text for text, _ in expected]
    assert replier.search.graph.traces == 1  # type: ignore[attr-defined]


@functools.cache
def rows_of(architecture: str) -> TensorFlowModel:
    """The graphs that generate token by token, which all settings share."""
    return TensorFlowModel(tiny(architecture).trained.model)


def test_beam_search_gathers_no_memory_and_no_keys() -> None:
    """At each token, only recurrent states follow their hypotheses: of float tensors, those of rank 2."""
    search: Any = replier_for(tiny("lstm-none").trained, DecodingSettings(**SEARCHES["lstm-none"])).search
    graph = search.graph.concrete.graph
    bodies = [[*function.graph.get_operations()] for function in graph._functions.values()]
    (body,) = (body for body in bodies if any(node.type == "TopKV2" for node in body))  # of the loop over tokens
    inputs = [node.inputs[0] for node in body if node.type == "GatherV2"]
    assert {x.shape.rank for x in inputs if x.dtype == tf.float32} <= {1, 2}


def test_many_questions_are_searched_in_batches_that_change_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the number of candidates change the first of them, or a seed the replies by another one."""
    replier = Table().responder(DecodingSettings(candidates=2, length_penalty=0.0)).replier
    whole = replier.candidates(sources_of(QUESTIONS))
    monkeypatch.setattr(module, "BATCH", 2)
    assert replier.candidates(sources_of(QUESTIONS)) == whole
    assert replier.replies(QUESTIONS) == [replies[0].text for replies in whole]
    assert replier.replies([]) == []
    many = Table().responder(DecodingSettings(candidates=5)).replier.candidates(sources_of(QUESTIONS))
    assert all({x.text for x in few} <= {x.text for x in more} for few, more in zip(whole, many, strict=True))
    last, before = len(QUESTIONS) - 1, replier.decoding.seed
    changed = replier.candidates(sources_of(QUESTIONS), seeds=[before] * last + [before + 1])
    assert changed[:last] == whole[:last]
    assert changed[last] != whole[last]
    limits = {1: 64, 40: 16, 1000: 1}
    monkeypatch.undo()
    found = [Table().responder(DecodingSettings(candidates=n)).replier.batch for n in limits]
    assert found == [*limits.values()]


@pytest.mark.parametrize("search", [{"beam_size": 4}, {"candidates": 6, "rerank": 0.5}])
def test_unwanted_search_ends_within_eight_ids(search: dict[str, Any]) -> None:
    trained = tiny("lstm-none").trained
    long = dataclasses.replace(trained, settings=replace(trained.settings, max_length=40))
    replier = replier_for(long, DecodingSettings(**search, min_reply_length=40))
    for questions in (QUESTIONS, QUESTIONS[:1]):
        asked: list[bool] = []

        def is_wanted(asked: list[bool] = asked) -> bool:
            asked.append(len(asked) < 2)
            return asked[-1]

        assert replier.candidates(sources_of(questions), is_wanted=is_wanted) == [[] for _ in questions]
        assert asked == [True, True, False, False]  # after 8, 16 and 24 ids, and of all


@pytest.mark.parametrize("begin", [ASK, BOS])
def test_log_probabilities_are_those_of_the_oracle(begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of questions from replies, and of replies from questions; in batches of any size; without n-grams."""
    tiny_model = tiny("lstm-copy-ngrams")
    sources = [[7], [5, 6, 8, 9], [8, 8], [10, 200, 5], [8, 8], [8, 8]]
    targets = [[6, 5], [9], [5, 5, 5, 7], [9], [5, 5, 6], [9]]  # some begin alike, of one question and of others
    pairs = zip(sources, targets, strict=True)
    expected = [likelihood(tiny_model.oracle.next_id, source, target, begin) for source, target in pairs]
    model = rows_of("lstm-copy-ngrams")
    for positions in (1024, 12, 7, 1):
        monkeypatch.setattr("chatbot.decoding.interface.POSITIONS", positions)
        values = score_pairs(model, sources, targets, begin, lambda: True)
        np.testing.assert_allclose(values, expected, rtol=1e-4)
    answers = iter([True, False])  # after the first pair, nobody waits any more
    unfinished = score_pairs(model, sources, targets, begin, lambda: next(answers))
    assert unfinished.nonzero()[0].tolist() == [0]


@pytest.mark.parametrize("check_interval", [0, 1])
@pytest.mark.parametrize(
    "flags",
    [{"beam_size": 1}, {"beam_size": 4, "rerank": 0.5}, {"candidates": 4}]
    + [{name: value} for name, value in {"top_k": 3, "top_p": 0.9, "min_p": 0.1}.items()],
    ids=str,
)
def test_nan_weights_are_an_error(flags: dict[str, Any], check_interval: int) -> None:
    """With arrays, with tensors, and token by token."""
    table = Table(check_interval=check_interval)
    table.after[:] = np.nan
    responder = table.responder(DecodingSettings(**flags))
    with pytest.raises(UserError, match="the weights are not finite; train it again"):
        responder.replier.candidates(sources_of([[5]]))
    with pytest.raises(UserError, match="the weights are not finite; train it again"):
        reply_of(responder, "你")


@pytest.mark.parametrize(
    ("flags", "changes", "message"),
    [
        ({"top_k": 300}, {}, "--top-k 300: the vocabulary has 267 tokens; choose a smaller value"),
        ({"min_reply_length": 8}, {}, f"--min-reply-length 8: replies of this attempt have at most {LENGTH} tokens"),
        ({"beam_size": 2, "rerank": 1.0}, {"both_directions": "off"}, "--rerank: this attempt did not learn"),
        ({"ban": ("\u200b",)}, {}, "--ban: one of the words has no visible characters; remove it"),
        ({"beam_size": 2, "retrieve": "3"}, {}, "--retrieve 3: this attempt has no index of its training pairs"),
    ],
)
def test_unsupported_settings_are_refused(flags: Any, changes: dict[str, Any], message: str) -> None:
    decoding = DecodingSettings()
    for name, value in flags.items():
        object.__setattr__(decoding, name, value)
    trained = tiny("lstm-none").trained
    settings = replace(trained.settings, **changes)
    with pytest.raises(UserError) as raised:
        replier_for(dataclasses.replace(trained, settings=settings), decoding)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
