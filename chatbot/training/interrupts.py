"""Handlers of SIGINT (Ctrl-C) and SIGTERM, which end a run between two steps."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts(announced: bool = True) -> Iterator[list[int]]:
    """Yield a list that receives the number of the first SIGINT or SIGTERM. A second raises KeyboardInterrupt.

    announced: whether the first signal prints a line. Outside the main thread, where Python allows no handlers, the
    list stays empty.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        if announced:
            print("\nFinishing this step, then saving. Ctrl-C again exits without saving.", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
