"""Clients are served in turn, and what waits is bounded."""

import collections
import itertools
import threading
import time

import hypothesis
import hypothesis.strategies as st

from chatbot.inference.request import Question, Request
from chatbot.inference.request_queue import BusyError, RequestQueue
from tests.inference.messages import asked


def of(client: str, replies: int = 1) -> Request:
    return asked(Question("", replies=replies, client=client), [])


def test_take_waits_for_enough_questions_or_the_timeout() -> None:
    """Meanwhile another thread may take them; closing ends both."""
    waiting, (first, second, third) = RequestQueue(10), [of("") for _ in range(3)]
    waiting.put(first)
    assert waiting.take(10, True, min_questions=2, timeout=0.05) == [first]
    batches: list[list[Request] | None] = []

    def take(enough: int) -> None:
        batches.append(waiting.take(10, True, enough, timeout=600))

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
    assert waiting.take(10, True, min_questions=2, timeout=600) is None


def one(waiting: RequestQueue) -> Request | None:
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
def test_clients_are_served_in_turn_and_each_in_order(
    steps: list[object],
) -> None:
    waiting, put, taken = RequestQueue(1000), list[Request](), list[Request]()
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


def burst(waiting: RequestQueue, client: str) -> int:
    """Ask as many questions as are accepted, and return their number."""
    for number in itertools.count():
        try:
            waiting.put(of(client))
        except BusyError:
            return number
    raise AssertionError


def test_bursts_leave_room_for_new_clients() -> None:
    waiting = RequestQueue(256)
    assert burst(waiting, "burst 0") == len(waiting) == 256
    for number in range(1, 3):
        waiting.put(of(f"new {number}"))
        assert burst(waiting, f"burst {number}") == 256
    waiting.put(of("new 3"))
    first, second = waiting.take(2, True) or []
    assert [first.question.client, second.question.client] == ["burst 0", "new 1"]
    assert len(waiting) + burst(waiting, "burst 3") == 4 * 256
