"""Connections of slow clients end."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Seconds for a client to send the line and the headers of a request.
HEADER_TIMEOUT = 15.0
# Seconds that a connection without a request stays open. Clients must close it first: one that sends a request while
# the server closes loses it. httpx waits for 5 s, which is uvicorn's default, too, and nginx for 60 s.
KEEP_ALIVE = 75


class Connection(HttpToolsProtocol):
    """uvicorn's connection, which is closed if a request's headers are not complete in time.

    uvicorn limits the time between requests only. `Gate` limits the time of bodies and of replies.
    """

    header_timeout = HEADER_TIMEOUT
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Wait for the headers of a request, which may not be the first one."""
        super().on_message_begin()
        if self._timer is None:
            self._wait()

    def on_headers_complete(self) -> None:
        """Wait no more."""
        self._stop()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.header_timeout, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
