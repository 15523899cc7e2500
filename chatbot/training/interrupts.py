"""Ctrl-C and a scheduler's SIGTERM end a run between two steps."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts(announced: bool = True) -> Iterator[list[int]]:
    """A list that receives the first SIGINT or SIGTERM; a second one raises KeyboardInterrupt at once."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        if announced:
            print(
                "\nFinishing this step, then saving. Ctrl-C again leaves without saving.", file=sys.stderr, flush=True
            )

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
