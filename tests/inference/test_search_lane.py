"""Replies of the engine's own search, when it compares hypotheses."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.inference.engine import Engine, SearchLane, Waiting
from chatbot.inference.questions import Question, Usage
from chatbot.inference.replier import Replier
from chatbot.inference.reply_text import Origin, Reply
from chatbot.inference.responder import Responder
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY
from chatbot.model.saved import load_trained
from tests.export.untrained import QUESTIONS, write_attempt
from tests.inference.messages import Answer, Message, answer_of, asked


@pytest.fixture(scope="module")
def responder(tmp_path_factory: pytest.TempPathFactory) -> Responder:
    """A responder whose search compares hypotheses."""
    directory: Path = write_attempt(tmp_path_factory.mktemp("searches") / "tiny")
    return Responder(load_trained(directory), DecodingSettings(beam_size=4))


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
