"""Replies of the engine's own search, when it compares hypotheses."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.inference.engine import SearchLane, Waiting
from chatbot.inference.questions import Question, Usage
from chatbot.inference.replier import Replier
from chatbot.inference.reply_text import Origin, Reply
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY, TextResponder
from tests.inference.messages import Answer, answer_of, answers_of, asked
from tests.tiny_models import LENGTH, VOCABULARY, Table

BEAMS = DecodingSettings(beam_size=4)
TABLE = Table()
RESPONDER = TABLE.responder(BEAMS)


def answer_with(question: Question, *replies: Reply, responder: TextResponder = RESPONDER) -> Answer:
    """The answer to a question for which these replies are found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(responder.replier, "candidates", lambda *_, **__: [list(replies)])
        return answer_of(responder, question)


def test_best_replies_are_given_in_their_order() -> None:
    source = RESPONDER.source("ab", ())
    found = RESPONDER.replier.candidates([source])[0]
    expected = [text for text, _ in TABLE.oracle().candidates(BEAMS, source)]
    assert len(expected) > 2
    for number in (1, 2, 50):
        answer = answer_of(RESPONDER, Question("ab", replies=number))
        assert answer.texts == expected[:number]  # not more than were found
        assert answer.scores == [reply.score for reply in found[:number]]
        assert answer.usage == Usage(len(source), sum(len(reply.ids) for reply in found[:number]))


def test_max_tokens_and_log_probabilities() -> None:
    whole = answer_of(RESPONDER, Question("ab", top_log_probs=2))
    cut = answer_of(RESPONDER, Question("ab", top_log_probs=2, max_tokens=1))
    assert (cut.reasons, cut.texts[0]) == (["length"], whole.tokens[0][0].text.rstrip())
    assert cut.tokens[0] == whole.tokens[0][:1]
    source, ids = RESPONDER.source("ab", ()), RESPONDER.n_best("ab")[0].ids
    for place, token in enumerate(whole.tokens[0]):
        log_probs = TABLE.oracle().distribution(source, ids[:place])
        found = [token.log_prob, *(value for _, value in token.top)]
        np.testing.assert_allclose(found, [log_probs[ids[place]], *np.sort(log_probs)[:-3:-1]], atol=1e-3)


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


def test_who_asks_again_gets_another_good_reply_in_turn() -> None:
    looked_up = [Reply(text, score, [5]) for text, score in (("a", 5.0), ("b", 3.0), ("c", 1.0), ("d", 0.9))]
    generated = [Reply(text, -score) for score, text in enumerate("abcdefg", 1)]
    for replies, expected in ((looked_up, "abcabca"), (generated, "abcdeab"), (looked_up[3:], "ddddddd")):
        found = [answer_with(Question("a", repeats=number), *replies).texts for number in range(7)]
        assert "".join(text for (text,) in found) == expected


def test_stop_texts_of_a_question_end_what_was_found() -> None:
    replies = [Reply(text, score, VOCABULARY.ids(text)) for score, text in enumerate(("好你", "你b好", "你"))]
    answer = answer_with(Question("a", stop=("好",), replies=3), *replies)
    assert answer.texts == ["你b", "你"]  # no empty one
    assert answer.usage == Usage(len(RESPONDER.source("a", ())), 3)
    assert answer_with(Question("a", stop=("好",)), replies[0]).texts == [""]


@pytest.mark.parametrize("is_own", [True, False], ids=["of the settings", "of the question"])
def test_fallback_where_no_reply_has_the_least_score(is_own: bool) -> None:
    replies = Reply("a", 3.0, [5]), Reply("b", 2.0, [5])
    for least, expected in ((None, ["a", "b"]), (2.0, ["a", "b"]), (2.5, ["a"]), (3.5, ["?"])):
        changes: dict[str, Any] = {} if least is None else {"min_score": least, "fallback": "?"}
        responder = TABLE.responder(dataclasses.replace(BEAMS, **changes)) if is_own else RESPONDER
        question = Question("a", replies=2, **({} if is_own else changes))
        answer = answer_with(question, *replies, responder=responder)
        assert (answer.texts, answer.scores) == (expected, [3.0, 2.0][: len(expected)])
    for repeats in (0, 1):
        assert answer_with(Question("a", min_score=3.5, repeats=repeats), *replies).texts == [BEAMS.fallback]


def test_what_was_read_of_a_question_is_said() -> None:
    """Its beginning, or of several messages the last ones."""
    longest = "b" * LENGTH
    for decoding in (None, DecodingSettings(beam_size=1)):
        for text, read in ((longest, ""), (f"{longest}你", longest), (f"{longest}\n你", "你"), ("你\n好", "")):
            assert answer_of(RESPONDER, Question(text, decoding=decoding)).read == [read]
        assert answer_of(RESPONDER, Question("你好", is_cut=True, decoding=decoding)).read == ["你好"]


def test_searches_of_requests_beside_the_own_one() -> None:
    """They share a graph where they differ in what is looked up alone; the settings of the attempt hold for them."""
    other, single = DecodingSettings(beam_size=2, length_penalty=0.0), DecodingSettings(beam_size=1)
    oracle, texts = TABLE.oracle(), ["ab", "好"]
    for own in (RESPONDER, TABLE.responder(single)):
        questions = [Question(text, decoding=decoding) for decoding in (BEAMS, other) for text in texts]
        expected = [oracle.candidates(q.decoding or BEAMS, own.source(q.text, ()))[0][0] for q in questions]
        assert [Answer(found).texts for found in answers_of(own, *questions)] == [[text] for text in expected]
    replier_of = RESPONDER.replier_of
    assert replier_of(other).search is replier_of(other).search
    assert replier_of(None) is RESPONDER.replier
    without = replier_of(dataclasses.replace(BEAMS, retrieve="none"))
    assert without.search is RESPONDER.replier.search
    assert without.decoding.retrieve == "none"
    assert replier_of(dataclasses.replace(other, ban=("  b ",))).decoding.ban == ("b",)


def test_questions_that_wait_are_searched_together_and_a_failure_ends_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes, failing = [], RESPONDER.source("b", ())

    def candidates(self: Replier, questions: list[list[int]], *last_replies: Any, **others: Any) -> object:
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
    expected = [TABLE.oracle().candidates(BEAMS, RESPONDER.source(text, ()))[0][0] for text in ("a", "好", "你b")]
    assert [Answer(own).texts for own in found] == [[text] for text in [*expected, EMPTY_QUESTION_REPLY]]


def test_nothing_is_computed_for_a_question_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a search nor log-probabilities."""
    question, steps = asked(Question("ab", top_log_probs=0), []), []
    original = TABLE.step

    def step(state: Any, last: Any) -> Any:
        steps.append(last)
        question.cancel()
        return original(state, last)

    waiting = Waiting(100)
    waiting.put(question)
    waiting.close()
    responder = TABLE.responder(BEAMS)
    reply = Reply("你好", 1.0, [9, 10])
    monkeypatch.setattr(responder.replier, "candidates", lambda *_, **__: [[reply]])
    monkeypatch.setattr(TABLE, "step", step)
    SearchLane(responder, waiting, 64).run()
    assert len(steps) == 1
    monkeypatch.undo()
    monkeypatch.setattr(TABLE, "step", step)
    question = asked(Question("ab"), [])
    waiting = Waiting(100)
    waiting.put(question)
    waiting.close()
    steps.clear()
    SearchLane(TABLE.responder(BEAMS), waiting, 64).run()
    assert len(steps) == 1
