"""Replies of the engine's own search, when it compares hypotheses."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.inference.engine import Engine, SearchLane, Waiting
from chatbot.inference.questions import Question, Usage
from chatbot.inference.replier import Replier
from chatbot.inference.reply_text import Origin, Reply, good_enough
from chatbot.inference.responder import Responder
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY
from chatbot.model.saved import Trained, load_trained
from tests.export.untrained import QUESTIONS, write_attempt
from tests.inference.messages import Answer, Message, answer_of, asked

TRAINED: dict[Responder, Trained] = {}


@pytest.fixture(scope="module")
def responder(tmp_path_factory: pytest.TempPathFactory) -> Responder:
    """A responder whose search compares hypotheses."""
    trained = load_trained(write_attempt(tmp_path_factory.mktemp("searches") / "tiny"))
    responder = Responder(trained, DecodingSettings(beam_size=4))
    TRAINED[responder] = trained
    return responder


@pytest.fixture(scope="module")
def engine(responder: Responder) -> Iterator[Engine]:
    """An engine of that search."""
    engine = Engine(responder)
    yield engine
    engine.close()


def test_best_replies_are_given_in_their_order(responder: Responder, engine: Engine) -> None:
    (found,) = responder.replier.candidates([responder.source("今天", ())])
    expected = [reply.text for reply in found]
    assert len(expected) > 2
    for number in (1, 2, 50):
        answer = answer_of(engine, Question("今天", replies=number))
        assert answer.texts == expected[:number]  # not more than were found
    assert answer.usage == Usage(len(responder.source("今天", ())), sum(len(reply.ids) for reply in found))


def test_max_tokens_and_log_probabilities(responder: Responder, engine: Engine) -> None:
    whole = answer_of(engine, Question("今天", top_log_probs=2))
    cut = answer_of(engine, Question("今天", top_log_probs=2, max_tokens=1))
    assert cut.reasons == ["length"]
    assert cut.texts[0] == whole.tokens[0][0].text
    assert cut.tokens[0] == whole.tokens[0][:1]
    # The other lane computes the same ones, token by token.
    greedy = answer_of(engine, Question("今天", decoding=DecodingSettings(beam_size=1), top_log_probs=2))
    assert [text for text, _ in greedy.tokens[0][0].top] == [text for text, _ in whole.tokens[0][0].top]
    np.testing.assert_allclose(greedy.tokens[0][0].top[0][1], whole.tokens[0][0].top[0][1], rtol=1e-4)


@pytest.fixture
def replies_of(responder: Responder, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """The answer to a question for which these replies are found."""

    def replies_of(question: Question, *replies: Reply) -> Answer:
        monkeypatch.setattr(Replier, "candidates", lambda *_, **__: [list(replies)])
        messages: list[Message] = []
        waiting = Waiting(100)
        waiting.put(asked(question, messages))
        waiting.close()
        SearchLane(responder, waiting, 64).run()
        return Answer(messages)

    return replies_of


def test_max_tokens_cuts_no_character(responder: Responder, replies_of: Callable[..., Answer]) -> None:
    text = "你龘好"
    ids = [i for c in text for i in responder.vocabulary.ids([c])]
    assert len(ids) > len(text), "a character is spelled in bytes"
    for number in range(1, len(ids)):
        answer = replies_of(Question("今天", max_tokens=number), Reply(text, 1.0, ids))
        shown = responder.vocabulary.text(ids[:number]).rstrip("\ufffd")
        assert (answer.texts, answer.reasons) == ([shown], ["length"])
        assert text.startswith(shown)
    assert replies_of(Question("今天", max_tokens=len(ids)), Reply(text, 1.0, ids)).texts == [text]


def test_a_reply_of_the_greatest_length_is_whole_if_a_person_wrote_it(
    responder: Responder, replies_of: Callable[..., Answer]
) -> None:
    ids = responder.ids("好") * responder.settings.model.max_length
    text = responder.vocabulary.text(ids)
    generated, looked_up = Reply(text, 2.0, ids), Reply(text, 1.0, ids, Origin("你好"))
    assert replies_of(Question("今天", replies=2), generated, looked_up).reasons == ["length", "stop"]
    assert replies_of(Question("今天"), Reply(text[:1], 1.0, ids[:1])).reasons == ["stop"]


def test_who_asks_again_gets_another_good_reply_in_turn(replies_of: Callable[..., Answer]) -> None:
    looked_up = [Reply(text, score, [5]) for text, score in (("a", 5.0), ("b", 3.0), ("c", 1.0), ("d", 0.9))]
    generated = [Reply(text, -score) for score, text in enumerate("abcdefg", 1)]
    for replies, expected in ((looked_up, "abcabca"), (generated, "abcdeab"), (looked_up[3:], "ddddddd")):
        found = [replies_of(Question("今天", repeats=number), *replies).texts for number in range(7)]
        assert "".join(text for (text,) in found) == expected


def test_stop_texts_of_a_question_end_what_was_found(responder: Responder, replies_of: Callable[..., Answer]) -> None:
    replies = [Reply(text, score, responder.ids(text)) for score, text in enumerate(("好你", "你吗好", "你"))]
    answer = replies_of(Question("今天", stop=("好",), replies=3), *replies)
    assert answer.texts == ["你吗", "你"]  # no empty one
    assert answer.usage == Usage(len(responder.source("今天", ())), len(responder.ids("你吗你")))
    assert replies_of(Question("今天", stop=("好",)), replies[0]).texts == [""]


def test_fallback_where_no_reply_has_the_least_score(replies_of: Callable[..., Answer]) -> None:
    replies = Reply("a", 3.0, [5]), Reply("b", 2.0, [5])
    for least, expected in ((None, ["a", "b"]), (2.0, ["a", "b"]), (2.5, ["a"]), (3.5, ["?"])):
        answer = replies_of(Question("今天", min_score=least, fallback="?", replies=2), *replies)
        assert answer.texts == expected
        assert answer.scores == [3.0, 2.0][: len(expected)]
    own = DecodingSettings(min_score=3.5)
    assert good_enough(replies, own.min_score, own.fallback) == [Reply(own.fallback, 3.0)]
    assert replies_of(Question("今天", min_score=3.5), *replies).texts == [own.fallback]
    assert replies_of(Question("今天", min_score=3.5, repeats=1), *replies).texts == [own.fallback]


def test_what_was_read_of_a_question_is_said(responder: Responder, engine: Engine) -> None:
    """Its beginning, or of several messages the last ones."""
    longest = "吗" * responder.settings.model.max_length
    greedy = DecodingSettings(beam_size=1)
    for decoding in (None, greedy):
        for text, read in ((longest, ""), (f"{longest}你", longest), (f"{longest}\n你", "你"), ("你\n好", "")):
            assert answer_of(engine, Question(text, decoding=decoding)).read == [read]
        assert answer_of(engine, Question("你好", is_cut=True, decoding=decoding)).read == ["你好"]


def test_searches_of_requests_beside_the_own_one(responder: Responder) -> None:
    other, single = DecodingSettings(beam_size=2, length_penalty=0.0), DecodingSettings(beam_size=1)
    expected = [
        Responder(TRAINED[responder], decoding).replies(QUESTIONS[:2]) for decoding in (responder.decoding, other)
    ]
    assert expected[0] != expected[1]
    for own in (responder, Responder(TRAINED[responder], single)):
        engine = Engine(own)
        questions = [Question(q, decoding=d) for d in (responder.decoding, other) for q in QUESTIONS[:2]]
        assert [answer_of(engine, question).texts for question in questions] == [
            [x] for replies in expected for x in replies
        ]
        engine.close()
    assert responder.replier_of(other).search is responder.replier_of(other).search
    assert responder.replier_of(None) is responder.replier
    without = responder.replier_of(dataclasses.replace(responder.decoding, retrieve="none"))
    assert without.search is responder.replier.search
    assert without.decoding.retrieve == "none"
    with pytest.raises(UserError, match=r"^--retrieve 3: this attempt has no index"):
        responder.replier_of(dataclasses.replace(other, retrieve="3"))


def test_weights_that_are_no_numbers_are_an_error(responder: Responder) -> None:
    hypotheses, scores = np.ones((2, 3), np.int32), np.array([np.nan, -np.inf], np.float32)
    with pytest.raises(UserError, match="the weights are not finite; train it again"):
        responder.replier._distinct(hypotheses, scores)


def test_questions_that_wait_are_searched_together_and_a_failure_ends_no_others(
    responder: Responder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def candidates(self: Replier, questions: list[list[int]], *last_replies: Any, **others: Any) -> object:
        sizes.append(len(questions))
        if responder.source("吗", ()) in questions:
            raise MemoryError("no memory")
        return original(self, questions, *last_replies, **others)

    original = Replier.candidates
    monkeypatch.setattr(Replier, "candidates", candidates)
    found = []
    for texts in (["吗", "吗"], [*QUESTIONS[:3], ""]):
        waiting = Waiting(100)
        messages: list[list[Message]] = [[] for _ in texts]
        for text, own in zip(texts, messages, strict=True):
            waiting.put(asked(Question(text), own))
        waiting.close()
        SearchLane(responder, waiting, 64).run()
        found += messages
    assert sizes == [2, 3]
    assert [type(message) for own in found[:2] for message in own] == [MemoryError] * 2
    assert [Answer(own).texts for own in found[2:5]] == [[reply] for reply in responder.replies(QUESTIONS[:3])]
    assert Answer(found[5]).texts == [EMPTY_QUESTION_REPLY]


def test_log_probabilities_of_a_question_end_when_nobody_waits(
    responder: Responder, monkeypatch: pytest.MonkeyPatch
) -> None:
    question, steps = asked(Question("今天", top_log_probs=0), []), []

    class Model:
        def encode(self, questions: object) -> None:
            pass

        def step(self, state: None, last: object) -> tuple[np.ndarray[Any, Any], None]:
            steps.append(last)
            question.cancel()
            return np.zeros((1, len(responder.vocabulary)), np.float32), None

    waiting = Waiting(100)
    waiting.put(question)
    waiting.close()
    monkeypatch.setattr(responder.replier, "model", Model())
    SearchLane(responder, waiting, 64).run()
    assert len(steps) == 1
