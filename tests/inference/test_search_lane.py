"""Replies of the engine's own search, when it compares hypotheses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.inference.engine import Engine, SearchLane, Waiting
from chatbot.inference.questions import Question, Usage
from chatbot.inference.replier import Replier
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
    expected = [reply.text for reply in responder.replier.candidates([responder.source("今天", ())])[0]]
    assert len(expected) > 2
    for number in (1, 2, 50):
        answer = answer_of(engine, Question("今天", replies=number))
        assert answer.texts == expected[:number]  # not more than were found
    assert answer.usage == Usage(len(responder.source("今天", ())), sum(len(responder.ids(x)) for x in expected))


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
