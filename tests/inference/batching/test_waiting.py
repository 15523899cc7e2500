"""The questions that wait for the engine."""

import threading
import time

from chatbot.inference.batching.asked import Asked
from chatbot.inference.batching.question import Question
from chatbot.inference.batching.waiting import Waiting
from tests.inference.batching.messages import asked


def some(number: int) -> list[Asked]:
    return [asked(Question(str(i)), []) for i in range(number)]


def test_wanted_questions_are_waited_for_and_those_of_another_lane_are_not() -> None:
    waiting, (first, second, other) = Waiting(2, 10, 100), some(3)
    waiting.put(0, first)
    waiting.put(1, other)
    timer = threading.Timer(0.05, waiting.put, [0, second])
    timer.start()
    assert waiting.take(0, 10, True, wanted=2, patience=60) == [first, second]
    timer.join()
    assert waiting.take(1, 10, True) == [other]


def test_patience_ends() -> None:
    waiting, (one,) = Waiting(1, 10, 100), some(1)
    waiting.put(0, one)
    began = time.monotonic()
    assert waiting.take(0, 10, True, wanted=2, patience=0.05) == [one]
    assert 0.04 < time.monotonic() - began < 10


def test_one_thread_waits_for_more_questions_while_another_takes_one() -> None:
    waiting, (one,) = Waiting(1, 10, 100), some(1)
    taken: list[list[Asked] | None] = []
    threads = [
        threading.Thread(target=lambda: taken.append(waiting.take(0, 10, True, wanted=2, patience=60)), daemon=True)
    ]
    threads += [threading.Thread(target=lambda: taken.append(waiting.take(0, 10, True)), daemon=True)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        while len(waiting._arrived[0]._waiters) < number:  # type: ignore[attr-defined]
            time.sleep(0.001)
    waiting.put(0, one)
    threads[1].join(10)
    assert taken == [[one]]
    waiting.close()
    threads[0].join(10)
    assert taken == [[one], None]


def test_close_ends_every_lane() -> None:
    waiting, taken = Waiting(2, 10, 100), []
    threads = [
        threading.Thread(target=lambda lane=lane: taken.append(waiting.take(lane, 10, True, lane * 2, 60)))
        for lane in (0, 1)
    ]
    for thread in threads:
        thread.start()
    waiting.close()
    for thread in threads:
        thread.join(10)
    assert taken == [None, None]
