"""Replies of the engine's own search, when it compares hypotheses."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from chatbot.config.decoding import DecodingSettings, one_sample
from chatbot.decoding.reply_text import MAX_CHARACTERS, Origin, Reply
from chatbot.inference.engine import SearchWorker
from chatbot.inference.replier import Replier, Source
from chatbot.inference.request import Question, Usage
from chatbot.inference.request_queue import RequestQueue
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY, TextResponder
from tests.inference.messages import Answer, answer_of, answers_of, asked
from tests.tiny_models import LENGTH, VOCABULARY, Table, sources_of

BEAMS = DecodingSettings(beam_size=4)
TABLE = Table()
RESPONDER = TABLE.responder(BEAMS)


def answer_with(question: Question, *replies: Reply, responder: TextResponder = RESPONDER) -> Answer:
    """The answer to a question for which these replies are found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(responder.replier, "candidates", lambda *_, **__: [list(replies)])
        return answer_of(responder, question)


def test_best_replies_are_given_in_their_order() -> None:
    """With the log-probabilities of their tokens. Further ones are the samples of these numbers, by the seed."""
    source = RESPONDER.source("ab", ()).ids
    found = RESPONDER.replier.candidates(sources_of([source]))[0]
    expected = [text for text, _ in TABLE.oracle().candidates(BEAMS, source)]
    assert len(expected) > 2
    samples = answer_of(RESPONDER, Question("ab", replies=9, seed=7, decoding=one_sample(BEAMS), top_log_probs=0))
    for number in (1, 2, 9):
        answer = answer_of(RESPONDER, Question("ab", replies=number, seed=7, top_log_probs=0))
        assert answer.texts == [*expected[:number], *samples.texts[len(found) : number]]
        assert answer.scores == [*(reply.score for reply in found[:number]), *[None] * (number - len(found))]
        assert answer.usage == Usage(len(source), sum(map(len, answer.tokens)))
    whole = answer_of(RESPONDER, Question("ab", top_log_probs=2))
    for place, token in enumerate(whole.tokens[0]):
        log_probs = TABLE.oracle().distribution(source, found[0].ids[:place])
        values = [token.log_prob, *(value for _, value in token.top)]
        np.testing.assert_allclose(values, [log_probs[found[0].ids[place]], *np.sort(log_probs)[:-3:-1]], atol=1e-3)
    cut = answer_of(RESPONDER, Question("ab", top_log_probs=2, max_tokens=1))
    assert (cut.reasons, cut.texts[0], cut.tokens[0]) == (["length"], whole.tokens[0][0].text, whole.tokens[0][:1])


def test_samples_of_each_question_have_its_seed() -> None:
    """Without one, that of the settings."""
    responder = TABLE.responder(DecodingSettings(candidates=3, temperature=1.5, seed=2))
    texts = {seed: answer_of(responder, Question("ab", seed=seed)).texts for seed in (1, 2, 3, None)}
    assert texts[None] == texts[2]
    assert len({*map(tuple, texts.values())}) > 1
    together = answers_of(responder, *(Question("ab", seed=seed) for seed in texts))
    assert [Answer(own).texts for own in together] == [*texts.values()]


def test_samples_are_not_added_if_the_model_must_not_generate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RESPONDER.replier, "generates", False)
    assert answer_with(Question("a", replies=3), Reply("b", 3.0, [5])).texts == ["b", BEAMS.fallback, BEAMS.fallback]


def test_max_tokens_cuts_no_character() -> None:
    text = "你龘好"
    ids = VOCABULARY.ids(text)
    assert len(ids) > len(text), "a character is spelled in bytes"
    for number in range(1, len(ids)):
        answer = answer_with(Question("a", max_tokens=number), Reply(text, 1.0, ids))
        shown = VOCABULARY.text(ids[:number]).rstrip("\ufffd")
        assert (answer.texts, answer.reasons) == ([shown], ["length"])
        assert text.startswith(shown)
    assert answer_with(Question("a", max_tokens=len(ids)), Reply(text, 1.0, ids)).texts == [text]


def test_a_reply_of_the_greatest_length_is_whole_if_a_person_wrote_it() -> None:
    ids = VOCABULARY.ids("好" * LENGTH)
    generated, looked_up = Reply("好" * LENGTH, 2.0, ids), Reply("好" * LENGTH, 1.0, ids, Origin("你好"))
    assert answer_with(Question("a", replies=2), generated, looked_up).reasons == ["length", "stop"]
    assert answer_with(Question("a"), Reply("好", 1.0, ids[:1])).reasons == ["stop"]


def test_repeated_questions_get_good_replies_in_turn() -> None:
    looked_up = [Reply(text, score, [5]) for text, score in (("a", 5.0), ("b", 3.0), ("c", 1.0), ("d", 0.9))]
    generated = [Reply(text, -score) for score, text in enumerate("abcdefg", 1)]
    for replies, expected in ((looked_up, "abcabca"), (generated, "abcdeab"), (looked_up[3:], "ddddddd")):
        found = [answer_with(Question("a", repeats=number), *replies).texts for number in range(7)]
        assert "".join(text for (text,) in found) == expected


def test_stop_texts_of_a_question_end_what_was_found() -> None:
    replies = [Reply(text, score, VOCABULARY.ids(text)) for score, text in enumerate(("好你", "你b好", "你"))]
    answer = answer_with(Question("a", stop=("好",), replies=2), *replies)
    assert answer.texts == ["你b", "你"]  # no empty one
    assert answer.usage == Usage(len(RESPONDER.source("a", ()).ids), 3)
    assert answer_with(Question("a", stop=("好",)), replies[0]).texts == [""]


def test_fallback_where_no_reply_has_the_least_score() -> None:
    """That of the settings or of the question."""
    replies = Reply("a", 3.0, [5]), Reply("b", 2.0, [5])
    for least, expected in ((2.0, ["a", "b"]), (2.5, ["a", "?"]), (3.5, ["?", "?"])):
        own = TABLE.responder(dataclasses.replace(BEAMS, min_score=least, fallback="?"))
        of_question = Question("a", replies=2, min_score=least, fallback="?")
        for responder, question in ((own, Question("a", replies=2)), (RESPONDER, of_question)):
            answer = answer_with(question, *replies, responder=responder)
            assert (answer.texts, answer.scores) == (expected, [3.0, 2.0 if "b" in expected else 3.0])
    for repeats in (0, 1):
        assert answer_with(Question("a", min_score=3.5, repeats=repeats), *replies).texts == [BEAMS.fallback]


def test_the_part_of_a_question_that_was_read_is_reported() -> None:
    """Its beginning, or of several messages the last ones."""
    longest = "b" * LENGTH
    for decoding in (None, DecodingSettings(beam_size=1)):
        for text, read in ((longest, ""), (f"{longest}你", longest), (f"{longest}\n你", "你"), ("你\n好", "")):
            assert answer_of(RESPONDER, Question(text, decoding=decoding)).read == [read]
        assert answer_of(RESPONDER, Question("你好", is_cut=True, decoding=decoding)).read == ["你好"]


@pytest.mark.parametrize("generates", [True, False])
def test_retrieval_reads_more_of_a_question_than_the_model(generates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it finds nothing and the model must not reply. Samples, which are added, are of the model."""
    monkeypatch.setattr(RESPONDER.replier, "generates", generates)
    longest = "b" * LENGTH
    retrieved = Reply("好", 1.0, [10], Origin("a"))
    of_model = longest if generates else ""
    assert answer_with(Question(f"{longest}\n你好", replies=2), retrieved).read == ["", "你好" if generates else ""]
    assert answer_with(Question(longest * 2), Reply("好", 1.0, [10])).read == [of_model]
    assert answer_with(Question(longest * 2, is_cut=True), retrieved).read == [longest * 2]
    most = "b" * MAX_CHARACTERS
    assert answer_with(Question(most), retrieved).read == [""]
    assert answer_with(Question(f"{most}b"), retrieved).read == [most]


def test_searches_of_requests_beside_the_own_one() -> None:
    """They share a graph where they differ in what is looked up alone; the settings of the attempt hold for them."""
    other, single = DecodingSettings(beam_size=2, length_penalty=0.0), DecodingSettings(beam_size=1)
    oracle, texts = TABLE.oracle(), ["ab", "好"]
    for own in (RESPONDER, TABLE.responder(single)):
        questions = [Question(text, decoding=decoding) for decoding in (BEAMS, other) for text in texts]
        expected = [oracle.candidates(q.decoding or BEAMS, own.source(q.text, ()).ids)[0][0] for q in questions]
        assert [Answer(found).texts for found in answers_of(own, *questions)] == [[text] for text in expected]
    replier_for = RESPONDER.replier_for
    assert replier_for(other).search is replier_for(other).search
    assert replier_for(None) is RESPONDER.replier
    without = replier_for(dataclasses.replace(BEAMS, retrieve="none"))
    assert without.search is RESPONDER.replier.search
    assert without.decoding.retrieve == "none"
    assert replier_for(dataclasses.replace(other, ban=("  b ",))).decoding.ban == ("b",)


def test_waiting_questions_are_searched_together_and_fail_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes, failing = [], RESPONDER.source("b", ())

    def candidates(self: Replier, questions: list[Source], *last_replies: Any, **others: Any) -> object:
        sizes.append(len(questions))
        if failing in questions:
            raise MemoryError("no memory")
        return original(self, questions, *last_replies, **others)

    original = Replier.candidates
    monkeypatch.setattr(Replier, "candidates", candidates)
    failed = answers_of(RESPONDER, Question("b"), Question("b"))
    found = answers_of(RESPONDER, *map(Question, ["a", "好", "你b", ""]))
    assert sizes == [2, 3]
    assert [type(message) for own in failed for message in own] == [MemoryError] * 2
    expected = [TABLE.oracle().candidates(BEAMS, RESPONDER.source(text, ()).ids)[0][0] for text in ("a", "好", "你b")]
    assert [Answer(own).texts for own in found] == [[text] for text in [*expected, EMPTY_QUESTION_REPLY]]


@pytest.mark.parametrize("is_found", [True, False], ids=["log-probabilities", "search"])
def test_nothing_is_computed_for_a_cancelled_question(is_found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    request, steps, original = asked(Question("ab", top_log_probs=0, replies=9), []), [], TABLE.step

    def step(state: Any, last: Any) -> Any:
        steps.append(last)
        request.cancel()
        return original(state, last)

    monkeypatch.setattr(TABLE, "step", step)
    waiting, responder = RequestQueue(100), TABLE.responder(BEAMS)
    if is_found:
        monkeypatch.setattr(responder.replier, "candidates", lambda *_, **__: [[Reply("你好", 1.0, [9, 10])]])
    waiting.put(request)
    waiting.close()
    SearchWorker(responder, waiting, 64).run()
    assert len(steps) == 1
