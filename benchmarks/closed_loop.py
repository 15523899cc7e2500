"""Clients that each ask again as soon as they have their answer."""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

# (question, done): ask, and call `done` with an exception or None when the answer is complete, in any thread.
Ask = Callable[[str, Callable[[Exception | None], None]], None]


class Latencies(NamedTuple):
    """What clients measured. seconds: from the first question to the last answer. latencies: of each answer."""

    seconds: float
    latencies: list[float]

    @property
    def replies_per_s(self) -> float:
        """Answers in a second."""
        return len(self.latencies) / self.seconds

    def percentile_ms(self, share: float) -> float:
        """The latency that this share of the answers does not exceed, in milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def median_ms(self) -> float:
        """The median latency in milliseconds."""
        return 1000 * statistics.median(self.latencies)


def closed_loop(ask: Ask, questions: Sequence[str], clients: int) -> Latencies:
    """Ask all questions by as many clients at once. Raises the first exception of an answer."""
    lock, finished = threading.Lock(), threading.Event()
    left, latencies, failures = list(reversed(questions)), [], []
    unanswered = len(questions)

    def ask_next() -> None:
        with lock:
            question = left.pop() if left else None
        if question is None:
            return
        began = time.perf_counter()

        def done(error: Exception | None) -> None:
            nonlocal unanswered
            latencies.append(time.perf_counter() - began)
            if error is not None:
                failures.append(error)
            with lock:
                unanswered -= 1
                is_last = unanswered == 0
            if is_last or failures:
                finished.set()
            else:
                ask_next()

        ask(question, done)

    began = time.perf_counter()
    for _ in range(clients):
        ask_next()
    finished.wait()
    if failures:
        raise failures[0]
    return Latencies(time.perf_counter() - began, latencies)
