"""The engine and its threads: what waits is bounded, and those who fail or leave disturb no others."""

import gc
import threading
import weakref
from collections.abc import Iterator, Sequence

import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.inference.engine import BusyError, Engine
from chatbot.inference.questions import Question, Usage
from tests.inference.messages import Message, answer_of, messages_of
from tests.inference.test_rows import GREEDY, QUESTIONS, SETTINGS, BreakingTable, of_table

BEAMS = DecodingSettings(beam_size=3)
TABLE = BreakingTable()


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(TABLE.responder(GREEDY))
    yield engine
    engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("engine")]


def test_questions_of_many_threads(engine: Engine) -> None:
    (best, _), *_ = TABLE.oracle().candidates(BEAMS, TABLE.responder(BEAMS).source("a", ()))
    found: dict[tuple[str, DecodingSettings, int], str] = {}

    def ask(number: int) -> None:
        for decoding in SETTINGS:
            for text in QUESTIONS:
                found[text, decoding, number] = answer_of(engine, Question(text, decoding=decoding)).texts[0]
        found["a", BEAMS, number] = answer_of(engine, Question("a", decoding=BEAMS)).texts[0]

    threads = [threading.Thread(target=ask, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 * (len(SETTINGS) * len(QUESTIONS) + 1)
    assert all(reply == (best if d == BEAMS else of_table(text, d)[0]) for (text, d, _), reply in found.items())
    assert engine.waiting == 0


def test_who_fails_to_receive_gets_nothing_more_and_others_do(engine: Engine) -> None:
    calls = []

    def receive(message: Message) -> None:
        calls.append(message)
        raise RuntimeError("gone")

    engine.submit(Question("你好"), receive)
    assert answer_of(engine, Question("你好")).texts
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["encode", "step"])
@pytest.mark.parametrize("decoding", [GREEDY, BEAMS], ids=["rows", "search"])
def test_failure_is_given_to_its_questions_alone(engine: Engine, name: str, decoding: DecodingSettings) -> None:
    question = Question("a", decoding=decoding)
    before = answer_of(engine, question).texts
    TABLE.broken = name
    (found,) = messages_of(engine, question)
    assert isinstance(found, MemoryError)
    assert answer_of(engine, question).texts == before


def test_waiting_questions_are_bounded_and_answered_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose asker left are not counted, and closing answers the rest."""
    responder, reads, goes_on = TABLE.responder(GREEDY), threading.Event(), threading.Event()
    source = responder.source

    def held(text: str, history: Sequence[str]) -> list[int]:
        reads.set()
        assert goes_on.wait(60)
        return source(text, history)

    monkeypatch.setattr(responder, "source", held)
    engine = Engine(responder, most_waiting=3)
    messages: list[list[Message]] = [[] for _ in range(6)]
    engine.submit(Question("你好"), messages[0].append)
    assert reads.wait(60)
    requests = [engine.submit(Question("你好"), own.append) for own in messages[1:3]]
    engine.submit(Question("你好"), messages[3].append)
    with pytest.raises(BusyError):
        engine.submit(Question("你好"), messages[4].append)
    assert engine.waiting == 3
    requests[0].cancel()
    engine.submit(Question("你好"), messages[4].append)
    assert engine.waiting == 3
    goes_on.set()
    engine.close()
    assert [bool(own) for own in messages] == [True, False, True, True, True, False]
    assert all(isinstance(own[-1], Usage) for own in messages if own)
    with pytest.raises(BusyError):
        engine.submit(Question("你好"), messages[5].append)


def test_answered_and_cancelled_questions_are_forgotten(engine: Engine) -> None:
    class Asker(list[Message]):
        """A list that can be referred to weakly."""

    askers = [Asker() for _ in range(4)]
    references = [weakref.ref(asker) for asker in askers]
    for asker in askers:
        engine.submit(Question("你好"), asker.append).cancel()
    answer_of(engine, Question("你好"))
    answer_of(engine, Question("你好"))
    del asker, askers
    gc.collect()
    assert not any(reference() is not None for reference in references)
