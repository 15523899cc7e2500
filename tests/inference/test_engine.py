"""The engine and its threads: what waits is bounded, and those who fail or leave disturb no others."""

import collections
import itertools
import threading
import time
from collections.abc import Iterator, Sequence

import hypothesis
import hypothesis.strategies as st
import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.inference.engine import JOINING_CHARACTERS, BusyError, Engine, RowLane, SearchLane, Waiting
from chatbot.inference.request import Piece, Question, Request, Usage
from tests.inference.messages import Message, answer_of, asked, messages_of
from tests.inference.test_rows import GREEDY, QUESTIONS, SETTINGS, BreakingTable, of_table

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


def test_first_questions_are_asked_by_each_search() -> None:
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


def test_who_leaves_early_gets_no_more_pieces(engine: Engine) -> None:
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


def of(client: str, replies: int = 1) -> Request:
    return asked(Question("", replies=replies, client=client), [])


@pytest.mark.parametrize("decoding", [GREEDY, BEAMS], ids=["rows", "search"])
def test_questions_that_nobody_waits_for_any_more_are_not_read(
    decoding: DecodingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were taken together with one that is being read."""
    responder, read, waiting = TABLE.responder(decoding), [], Waiting(10)
    requests, source = [asked(Question(text), []) for text in ("a", "b")], responder.source

    def reading(text: str, history: Sequence[str]) -> list[int]:
        read.append(text)
        requests[1].cancel()
        return source(text, history)

    monkeypatch.setattr(responder, "source", reading)
    for request in requests:
        waiting.put(request)
    waiting.close()
    (RowLane(responder, waiting) if decoding.streams else SearchLane(responder, waiting, 10)).run()
    assert read == ["a"]


def test_questions_that_join_at_once_have_a_bounded_text() -> None:
    """Their turns count. One that is longer joins alone."""
    long, waiting = "x" * JOINING_CHARACTERS, Waiting(10)
    sizes = [f"{long}x", "a", long[1:], "b", "c"]
    for text in sizes:
        waiting.put(asked(Question(text[1:], history=(text[:1],)), []))
    lane, joined = RowLane(TABLE.responder(GREEDY), waiting), []
    while waiting:
        joined.append([len(request.question.text) for request in lane.joining() or []])
    assert joined == [[len(long)], [0, len(long) - 2], [0, 0]]


def test_a_thread_waits_for_enough_questions_or_until_its_patience_ends() -> None:
    """Meanwhile another thread may take them; closing ends both."""
    waiting, (first, second, third) = Waiting(10), [of("") for _ in range(3)]
    waiting.put(first)
    assert waiting.take(10, True, enough=2, patience=0.05) == [first]
    batches: list[list[Request] | None] = []

    def take(enough: int) -> None:
        batches.append(waiting.take(10, True, enough, patience=600))

    threads = [threading.Thread(target=take, args=[enough], daemon=True) for enough in (2, 1)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        while len(waiting._arrived._waiters) < number:  # type: ignore[attr-defined]
            time.sleep(0.001)
    waiting.put(second)
    threads[1].join(240)
    assert batches == [[second]]
    for request in (second, third):
        waiting.put(request)
    threads[0].join(240)
    assert batches[1:] == [[second, third]]
    waiting.close()
    assert waiting.take(10, True, enough=2, patience=600) is None


def one(waiting: Waiting) -> Request | None:
    """The next question."""
    taken = waiting.take(1, blocks=len(waiting) > 0)
    return taken[0] if taken else None


STEPS = st.one_of(
    st.tuples(st.sampled_from("abcdef"), st.integers(1, 4)),  # a question of a client, and its number of replies
    st.just("take"),
    st.integers(0, 20),  # cancels a question
)


@hypothesis.given(st.lists(STEPS, max_size=40))
@hypothesis.settings(max_examples=100)
def test_a_new_client_waits_for_at_most_one_question_of_each_other_and_a_client_keeps_its_order(
    steps: list[object],
) -> None:
    waiting, put, taken = Waiting(1000), list[Request](), list[Request]()
    since = dict[str, int]()  # client -> the number of questions taken when its first one was put

    def take() -> bool:
        if (question := one(waiting)) is None:
            return False
        taken.append(question)
        return True

    for step in steps:
        if isinstance(step, tuple):
            put.append(of(*step))
            since.setdefault(step[0], len(taken))
            waiting.put(put[-1])
        elif step == "take":
            take()
        elif isinstance(step, int) and step < len(put):
            put[step].cancel()
    while take():
        pass
    assert len(waiting) == 0
    for client, begin in since.items():
        of_client = [question for question in taken if question.question.client == client]
        assert of_client == [question for question in put if question in of_client]
        first = next((x for x in put if x.question.client == client), None)
        if first in taken:
            before = collections.Counter(x.question.client for x in taken[begin : taken.index(first)])
            assert all(number == 1 for number in before.values())
    assert all(question in taken or question.is_over for question in put)


def burst(waiting: Waiting, client: str) -> int:
    """Ask as many questions as are accepted, and return their number."""
    for number in itertools.count():
        try:
            waiting.put(of(client))
        except BusyError:
            return number
    raise AssertionError


def test_bursts_leave_room_for_new_clients() -> None:
    waiting = Waiting(256)
    assert burst(waiting, "burst 0") == len(waiting) == 256
    for number in range(1, 3):
        waiting.put(of(f"new {number}"))
        assert burst(waiting, f"burst {number}") == 256
    waiting.put(of("new 3"))
    first, second = waiting.take(2, True) or []
    assert [first.question.client, second.question.client] == ["burst 0", "new 1"]
    assert len(waiting) + burst(waiting, "burst 3") == 4 * 256
