"""The engine and its threads: what waits is bounded, and those who fail or leave disturb no others."""

import threading
from collections.abc import Iterator, Sequence

import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.inference.engine import MAX_JOIN_CHARACTERS, Engine, SearchWorker, StreamWorker
from chatbot.inference.replier import Source
from chatbot.inference.request import Piece, Question, Usage
from chatbot.inference.request_queue import BusyError, RequestQueue
from tests.inference.messages import Message, answer_of, asked, messages_of
from tests.inference.test_row_batch import GREEDY, QUESTIONS, SETTINGS, BreakingTable, of_table

BEAMS = DecodingSettings(beam_size=3)
TABLE = BreakingTable()


@pytest.fixture
def engine() -> Iterator[Engine]:
    before = threading.enumerate()
    engine = Engine(TABLE.responder(GREEDY))
    yield engine
    engine.close()
    assert not [x for x in threading.enumerate() if x.name.startswith("engine") and x not in before]


def test_questions_of_many_threads(engine: Engine) -> None:
    (best, _), *_ = TABLE.oracle().candidates(BEAMS, TABLE.responder(BEAMS).source("a", ()).ids)
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


def test_failing_receiver_is_cancelled_and_others_are_answered(engine: Engine) -> None:
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

    def held(text: str, history: Sequence[str]) -> Source:
        reads.set()
        assert goes_on.wait(240)
        return source(text, history)

    monkeypatch.setattr(responder, "source", held)
    engine = Engine(responder, most_waiting=3)
    messages: list[list[Message]] = [[] for _ in range(6)]
    engine.submit(Question("你好"), messages[0].append)
    assert reads.wait(240)
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


def test_warm_up_runs_every_search() -> None:
    """An engine that cannot answer them is closed."""
    responder, asked = TABLE.responder(GREEDY), list[DecodingSettings | None]()
    fixed_reply = responder.fixed_reply

    def noted(text: str, source: Sequence[int], decoding: DecodingSettings | None) -> str | None:
        asked.append(decoding)
        return fixed_reply(text, source, decoding)

    responder.fixed_reply = noted  # type: ignore[method-assign, assignment]
    engine = Engine(responder)
    engine.warm_up((None, BEAMS))
    assert asked == [None, BEAMS]
    TABLE.broken = "step"
    with pytest.raises(MemoryError):
        engine.warm_up()
    with pytest.raises(BusyError):
        engine.submit(Question("a"), print)


def test_closing_the_iterator_cancels_the_request(engine: Engine) -> None:
    request = asked(Question("a"), [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "submit", lambda _, receive: receive(Piece(0, "a")) or request)
        pieces = engine.pieces(Question("a"))
    assert next(pieces).text == "a"
    before = request.is_over
    pieces.close()
    assert (before, request.is_over) == (False, True)
    assert "".join(piece.text for piece in engine.pieces(Question("a"))) == of_table("a", GREEDY)[0]
    with pytest.raises(UserError, match="min-reply-length"):
        list(engine.pieces(Question("a", decoding=DecodingSettings(beam_size=1, min_reply_length=99))))


@pytest.mark.parametrize("decoding", [GREEDY, BEAMS], ids=["rows", "search"])
def test_cancelled_questions_are_not_read(decoding: DecodingSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were taken together with one that is being read."""
    responder, read, waiting = TABLE.responder(decoding), [], RequestQueue(10)
    requests, source = [asked(Question(text), []) for text in ("a", "b")], responder.source

    def reading(text: str, history: Sequence[str]) -> Source:
        read.append(text)
        requests[1].cancel()
        return source(text, history)

    monkeypatch.setattr(responder, "source", reading)
    for request in requests:
        waiting.put(request)
    waiting.close()
    (StreamWorker(responder, waiting) if decoding.streams else SearchWorker(responder, waiting, 10)).run()
    assert read == ["a"]


def test_questions_that_join_at_once_have_a_bounded_text() -> None:
    """Their turns count. One that is longer joins alone."""
    long, waiting = "x" * MAX_JOIN_CHARACTERS, RequestQueue(10)
    sizes = [f"{long}x", "a", long[1:], "b", "c"]
    for text in sizes:
        waiting.put(asked(Question(text[1:], history=(text[:1],)), []))
    worker, joined = StreamWorker(TABLE.responder(GREEDY), waiting), []
    while waiting:
        joined.append([len(request.question.text) for request in worker.next_requests() or []])
    assert joined == [[len(long)], [0, len(long) - 2], [0, 0]]
