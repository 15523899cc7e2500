"""The lines of --log-conversations."""

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)
MOST_WAITING = 1000  # lines that wait to be written
LAST_SECONDS = 5.0  # for the lines that wait when the server stops


class ConversationLog:
    """Writes lines in a thread of its own, so that whoever reads them cannot stop the server.

    Lines that cannot be written are dropped, which is said once. write: writes a line; what it raises is an error of
    the log, and not of the request.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lines: queue.Queue[str | None] = queue.Queue(MOST_WAITING)
        self._has_failed = False
        self._thread: threading.Thread | None = None

    def add(self, line: str) -> None:
        """Write a line soon. Raises nothing. Call it from one thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log of conversations", daemon=True)
            self._thread.start()
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._fail("its reader has stopped")

    def close(self) -> None:
        """Write the lines that wait, but not for long."""
        if self._thread is not None:
            try:
                self._lines.put(None, timeout=LAST_SECONDS)
            except queue.Full:
                return
            self._thread.join(LAST_SECONDS)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write(line)
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.error("--log-conversations: the log cannot be written, and lines of it are lost: %s", reason)
