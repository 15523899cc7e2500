"""Whether somebody waits for the replies to a question."""

import contextlib
import threading
from collections.abc import Callable, Iterator


class Ticket:
    """A question whose replies somebody waits for."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def cancel(self) -> None:
        """Stop computing replies to the question: nobody waits for them. Any thread may call this."""
        with self._lock:
            self.cancelled.set()
            callbacks = self._callbacks[:]
        for callback in callbacks:
            callback()

    @contextlib.contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call a function if the ticket is cancelled in this block, in the thread that cancels it, or was before."""
        with self._lock:
            self._callbacks.append(callback)
            is_late = self.cancelled.is_set()
        if is_late:
            callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)
