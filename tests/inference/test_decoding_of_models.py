"""Decoding settings with a model: all together, batches, reranking, seeds, and what a model does not admit."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import ASK, BOS, BYTES, EOS, PAD, Vocabulary
from chatbot.errors import UserError
from chatbot.flags import compose
from chatbot.inference.model import EMPTY_QUESTION, log_probabilities
from chatbot.inference.replier import Replier
from chatbot.inference.responder import TensorFlowModel, replier_of
from chatbot.model.copying import spelling_table
from chatbot.model.new_model import built_model
from chatbot.model.saved import Trained
from chatbot.model.seq2seq import Seq2Seq

VOCABULARY = Vocabulary(["你好", "你", "好", "吗", "我", "他", *BYTES])
SETTINGS = ModelSettings(rnn_size=8, embedding_size=6, max_length=7)
QUESTIONS = [[5], [6, 7, 8], [8] * 9, [7, 7], [9, 10, 5], [6]]
ALL_TOKENS: dict[str, Any] = {
    "repetition_penalty": 1.5,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.3,
    "no_repeat_ngram": 2,
    "min_reply_length": 3,
    "ban": ("我", "他好"),
    "anti_lm": 0.5,
    "anti_lm_tokens": 2,
}


def untrained(settings: ModelSettings) -> Seq2Seq:
    """A model whose replies depend on the question, mostly in tokens that are no bytes."""
    model = built_model(settings, len(VOCABULARY), seed=1, spellings=spelling_table(VOCABULARY.spellings()))
    model.embedding.embeddings.assign(np.random.default_rng(1).normal(size=model.embedding.embeddings.shape))
    model.bias.assign(np.where(np.arange(len(VOCABULARY)) < VOCABULARY.first_byte, 3.0, -1.0))
    return model


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    return untrained(SETTINGS)


def trained(model: Seq2Seq, **settings: Any) -> Trained:
    """The model, learned with these settings."""
    values = {"rnn_size": 8, "embedding_size": 6, "max_length": 7, "both_directions": "on", **settings}
    return Trained(compose(Settings, **values), VOCABULARY, model, step=0)


@pytest.mark.parametrize(
    ("copy", "search"),
    [
        (False, {"beam_size": 1}),
        (False, {"beam_size": 4, "coverage_penalty": 0.5, "diverse_groups": 2, "rerank": 0.5}),
        (False, {"temperature": 0.8, "top_k": 100, "top_p": 0.9, "min_p": 0.001, "typical": 0.95}),
        (True, {"candidates": 6, "rerank": 0.5, "length_penalty": 0.5}),
    ],
    ids=["greedy", "beam", "sampling", "candidates"],
)
def test_all_settings_together_and_replies_do_not_depend_on_the_batch(
    model: Seq2Seq, copy: bool, search: dict[str, Any]
) -> None:
    """Every reply keeps to the settings of tokens; the search is traced once."""
    chosen = untrained(dataclasses.replace(SETTINGS, copy=True)) if copy else model
    replier = replier_of(trained(chosen, copy=copy), DecodingSettings(**search, **ALL_TOKENS))
    found = replier.candidates(QUESTIONS)
    for question, replies in zip(QUESTIONS, found, strict=True):
        (alone,) = replier.candidates([question])
        assert [text for text, *_ in alone] == [text for text, *_ in replies]
        np.testing.assert_allclose(
            [reply.score for reply in alone], [reply.score for reply in replies], rtol=1e-3, atol=1e-4
        )
        for text, score, *_ in replies:
            assert "我" not in text
            assert "他好" not in text
            assert np.isfinite(score)
        assert replies == sorted(replies, key=lambda reply: -reply.score)
    rows = [replier.search([[question[:7]]], 0, lambda: True)[0][0][0] for question in QUESTIONS]
    for row in np.concatenate(rows):
        tokens = [i for i in row.tolist() if i not in (PAD, EOS)]
        assert len(tokens) >= 3
        bigrams = list(itertools.pairwise(tokens))
        assert len(set(bigrams)) == len(bigrams)
    assert replier.search.graph.traces == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("search", [{"beam_size": 4}, {"candidates": 6, "rerank": 0.5}])
def test_search_that_is_not_wanted_any_more_ends_within_eight_ids(search: dict[str, Any]) -> None:
    settings = dataclasses.replace(SETTINGS, max_length=40)
    decoding = DecodingSettings(**search, min_reply_length=40)
    replier = Replier(TensorFlowModel(untrained(settings)), VOCABULARY, settings, decoding)
    for questions in (QUESTIONS, QUESTIONS[:1]):
        asked: list[bool] = []

        def is_wanted(asked: list[bool] = asked) -> bool:
            asked.append(len(asked) < 2)
            return asked[-1]

        assert replier.candidates(questions, is_wanted=is_wanted) == [[] for _ in questions]
        assert asked == [True, True, False, False]  # after 8, 16 and 24 ids, and of all


def test_sampling_is_determined_by_seed_and_question(model: Seq2Seq) -> None:
    """In a batch of 64, too, at another place; the first candidates do not depend on their number."""
    one, two = (DecodingSettings(temperature=1.0, seed=seed) for seed in (1, 2))
    replier = Replier(TensorFlowModel(model), VOCABULARY, SETTINGS, one)
    alone = [replier.replies([question])[0] for question in QUESTIONS]
    assert replier.replies([[9, 9], *QUESTIONS, *[[5, 5]] * 57])[1 : 1 + len(QUESTIONS)] == alone
    assert Replier(TensorFlowModel(model), VOCABULARY, SETTINGS, two).replies(QUESTIONS) != alone
    many = Replier(TensorFlowModel(model), VOCABULARY, SETTINGS, DecodingSettings(candidates=5)).candidates(QUESTIONS)
    assert all(text in [reply.text for reply in replies] for text, replies in zip(alone, many, strict=True))


def teacher_forced(model: Seq2Seq, source: list[int], target_in: list[int], target_out: list[int]) -> float:
    """The log-probability of one target."""
    logits = model(model.sequences(np.array([source])), model.sequences(np.array([target_in])))[: len(target_in)]
    log_probs = tf.nn.log_softmax(logits).numpy()
    return float(sum(log_probs[range(len(target_out)), target_out]))


@pytest.mark.parametrize("begin", [ASK, BOS])
def test_log_probabilities_are_those_of_targets_generated_from_sources(
    model: Seq2Seq, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of questions from replies, and of replies from questions."""
    sources = [[7], [5, 6, 8, 9], [8, 8], [10, 200, 5], [8, 8], [8, 8]]
    targets = [[6, 5], [9], [5, 5, 5, 7], [9], [5, 5, 6], [9]]  # some begin alike, of one question and of others
    values = log_probabilities(TensorFlowModel(model), sources, targets, begin, lambda: True)
    for source, target, value in zip(sources, targets, values, strict=True):
        assert value == pytest.approx(teacher_forced(model, source, [begin, *target], [*target, EOS]), rel=1e-4)
    model.freeze()
    np.testing.assert_allclose(
        log_probabilities(TensorFlowModel(model), sources, targets, begin, lambda: True), values, rtol=1e-5
    )
    for positions in (1, 7, 12):
        monkeypatch.setattr("chatbot.inference.model.POSITIONS", positions)
        batches = log_probabilities(TensorFlowModel(model), sources, targets, begin, lambda: True)
        np.testing.assert_allclose(batches, values, rtol=1e-4)
    monkeypatch.setattr("chatbot.inference.model.POSITIONS", 1)
    answers = iter([True, False])  # after the first pair, nobody waits any more
    unfinished = log_probabilities(TensorFlowModel(model), sources, targets, begin, lambda: next(answers))
    assert unfinished.nonzero()[0].tolist() == [0]


class FakeModel:
    """A model whose search finds these rows for each question, and to which all texts are as probable."""

    def __init__(self, rows: np.ndarray[Any, Any], scored: Any) -> None:
        self._rows, self._scored = rows, scored

    def searcher(self, *_: object) -> Any:
        return lambda *_: [(self._rows[None], -np.arange(len(self._rows), dtype=np.float32)[None])]

    def log_probabilities(self, sources: Sequence[Any], targets: Sequence[Any], begin: int) -> Any:
        assert begin == ASK
        self._scored(sources, targets)
        return np.ones(len(sources), np.float32)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_reranking_adds_the_reverse_score_under_the_length_penalty(model: Seq2Seq, penalty: float) -> None:
    plain, reranked = (
        {
            reply.text: reply.score
            for reply in Replier(TensorFlowModel(model), VOCABULARY, SETTINGS, decoding).candidates([[6, 7]])[0]
        }
        for decoding in (DecodingSettings(beam_size=6, length_penalty=penalty, rerank=weight) for weight in (0.0, 3.0))
    )
    assert plain.keys() == reranked.keys()
    for text, score in plain.items():
        ids = VOCABULARY.ids([text])
        if score != min(plain.values()) and "你好" not in text:  # whose spelling is known
            added = teacher_forced(model, ids, [ASK, 6, 7], [6, 7, EOS]) / ((5 + 3) / 6) ** penalty
            assert reranked[text] == pytest.approx(score + 3 * added, rel=1e-3, abs=1e-3)


def test_reranking_reads_a_reply_before_its_stop_text() -> None:
    """Also when the stop text ends the reply, has several tokens, or is a part of a token."""
    ids = [[6, 7, 8], [6, 7, 9, 10, 6], [6, *"一".encode()], [8, 6], [6, 7]]
    ids[2][1:] = [VOCABULARY.first_byte + byte for byte in "一".encode()]
    rows = np.array([row + [EOS] + [PAD] * (6 - len(row)) for row in ids])
    read: list[Sequence[int]] = []

    model: Any = FakeModel(rows, lambda replies, _: read.extend(replies))
    decoding = DecodingSettings(beam_size=5, rerank=1.0, stop=("吗", "我他", "一"))
    Replier(model, VOCABULARY, SETTINGS, decoding).candidates([[6]])
    assert sorted(map(list, read)) == [[6], [6, 7]]  # the texts of the others are the same, or empty


def test_score_with_anti_lm_is_the_difference_of_log_probabilities(model: Seq2Seq) -> None:
    """In a beam, too: the scores are not normalised again at each token."""
    settings = dataclasses.replace(SETTINGS, max_length=2)
    decoding = DecodingSettings(beam_size=3, length_penalty=0.0)
    plain = Replier(TensorFlowModel(model), VOCABULARY, settings, decoding)
    replier = Replier(
        TensorFlowModel(model), VOCABULARY, settings, dataclasses.replace(decoding, anti_lm=0.5, anti_lm_tokens=2)
    )
    ids, scores = (x[0] for x in replier.search([[[6, 7]]], 0, lambda: True)[0])
    texts = {reply.text: reply.score for reply in plain.candidates([[6, 7]])[0]}
    compared = 0
    for row, score in zip(ids.tolist(), scores.tolist(), strict=True):
        out = [i for i in row if i != PAD]
        text = VOCABULARY.text(out)
        if text in texts and all(i < VOCABULARY.first_byte for i in out):
            generic = teacher_forced(model, EMPTY_QUESTION, [1, *out[:-1]], out)
            assert score == pytest.approx(texts[text] - 0.5 * generic, rel=1e-3)
            compared += 1
    assert compared


@pytest.mark.parametrize(
    ("decoding", "changes", "message"),
    [
        ({"top_k": 300}, {}, "--top-k 300: the vocabulary has 267 tokens; give at most that"),
        ({"min_reply_length": 8}, {}, "--min-reply-length 8: replies of this attempt have at most 7 tokens"),
        ({"beam_size": 2, "coverage_penalty": 0.5}, {"attention": "none"}, "--coverage-penalty: this attempt has no"),
        ({"beam_size": 2, "rerank": 1.0}, {"both_directions": "off"}, "--rerank: this attempt did not learn"),
        ({"ban": ("\u200b",)}, {}, "--ban: a word without visible characters; remove it"),
    ],
)
def test_what_the_model_does_not_admit_is_refused(
    model: Seq2Seq, decoding: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    settings = DecodingSettings()
    for name, value in decoding.items():
        object.__setattr__(settings, name, value)
    with pytest.raises(UserError) as raised:
        replier_of(trained(model, **changes), settings)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
