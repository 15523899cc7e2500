"""The questions that wait for the engine."""

import collections
import threading
import time

import hypothesis
import hypothesis.strategies as st

from chatbot.inference.engine import BusyError, Waiting
from chatbot.inference.questions import Question, Request
from tests.inference.messages import asked


def some(number: int) -> list[Request]:
    return [asked(Question(str(i)), []) for i in range(number)]


def test_enough_questions_are_waited_for() -> None:
    waiting, (first, second) = Waiting(10), some(2)
    waiting.put(first)
    timer = threading.Timer(0.05, waiting.put, [second])
    timer.start()
    began = time.monotonic()
    assert waiting.take(10, True, enough=2, patience=60) == [first, second]
    assert time.monotonic() - began < 50
    timer.join()


def test_patience_ends() -> None:
    waiting, (one,) = Waiting(10), some(1)
    waiting.put(one)
    began = time.monotonic()
    assert waiting.take(10, True, enough=2, patience=0.05) == [one]
    assert 0.04 < time.monotonic() - began < 10


def test_one_thread_waits_for_more_questions_while_another_takes_one_and_close_ends_both() -> None:
    waiting, (one,) = Waiting(10), some(1)
    batches: list[list[Request] | None] = []
    threads = [
        threading.Thread(target=lambda: batches.append(waiting.take(10, True, enough=2, patience=60)), daemon=True)
    ]
    threads += [threading.Thread(target=lambda: batches.append(waiting.take(10, True)), daemon=True)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        while len(waiting._arrived._waiters) < number:  # type: ignore[attr-defined]
            time.sleep(0.001)
    waiting.put(one)
    threads[1].join(10)
    assert batches == [[one]]
    waiting.close()
    threads[0].join(10)
    assert batches == [[one], None]


def of(client: str, replies: int = 1) -> Request:
    return asked(Question("", replies=replies, client=client), [])


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
    for number in range(1000):
        try:
            waiting.put(of(client))
        except BusyError:
            return number
    raise AssertionError("the questions of a client are not bounded")


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
