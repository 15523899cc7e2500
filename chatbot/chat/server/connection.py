"""Connections end whose clients are slow, send too much before a body, or leave an answer unread."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from chatbot.chat.server.errors import ApiError

# Of the line and the headers of a request. The bytes are also those of the headers after a body in chunks.
LARGEST_HEAD = 1 << 16
MOST_HEADERS = 200
# Requests that a client may send before the first of them is answered.
MOST_PIPELINED = 16
# Seconds that a connection without a request stays open. Clients must close it first: one that sends a request while
# the server closes loses it. httpx waits for 5 s, which is uvicorn's default, too, and nginx for 60 s.
KEEP_ALIVE = 75
# Connections that may be open at once; at least two for each request that may be answered.
LEAST_CONNECTIONS = 512
# A client that reads so many bytes of an answer may keep it waiting for another second.
LEAST_RATE = 4096
# In the `extensions` of a request's scope: an asynchronous function that returns when all that was sent has left this
# process, or the connection is closed.
DRAINED = "chatbot.drained"


def _refusal(status: int, code: str, message: str) -> bytes:
    """Return a response that ends a connection."""
    body = ApiError(status, message, code=code).body()
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return STATUS_LINE[status] + head + body


NO_HTTP = _refusal(400, "invalid_http", "The request is not valid HTTP")
TOO_LARGE = _refusal(
    431, "headers_too_large", f"The headers have more than {LARGEST_HEAD:,} bytes, or are more than {MOST_HEADERS}"
)
TOO_MANY_CONNECTIONS = _refusal(503, "busy", "Too many connections are open; try again")


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits: of the time and the size of a head, of unread answers, and of connections.

    Where uvicorn's `limit_concurrency` is reached, a new connection takes the place of the one that is idle for the
    longest time. `Gate` limits the time and the size of bodies, and the time of replies.

    What a callback of the parser raises ends the parser, and `send_400_response` is called.
    """

    # Seconds for a client to send the line and the headers of a request.
    header_timeout = 15.0
    # Seconds that a client may keep an answer waiting.
    unread_timeout = 20.0
    # Seconds for which the rest of a refused request is read and dropped. A socket that is closed with unread data
    # resets the connection, and the client may lose the response.
    linger_timeout = 5.0
    _timer: asyncio.TimerHandle | None = None  # of a head, or of the rest of a refused request
    _unread_timer: asyncio.TimerHandle | None = None
    _refusal = NO_HTTP  # what an error of the parser is answered with
    _is_refused = False
    _unparsed = 0  # bytes since a head ended, or a part of a body came
    _unread = 0  # bytes that waited for the client to read
    _unread_since = 0.0
    _idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head, or refuse the connection if there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # each byte that waits is noticed by `pause_writing`
        self._idle_since = self.loop.time()
        self._close_after(self.header_timeout)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            others = [other for other in self.connections - {self} if isinstance(other, Connection) and other.is_idle]
            if others:
                oldest = min(others, key=lambda other: other._idle_since)
                self.connections.discard(oldest)
                oldest.transport.abort()
            else:
                self.connections.discard(self)
                transport.write(TOO_MANY_CONNECTIONS)
                transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        self.resume_writing()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Parse what was read. Also empty lines before a request, or the rest of a body, begin the time of a head."""
        if self._is_refused:
            return
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > LARGEST_HEAD:
            self._refuse(TOO_LARGE)
        elif self._timer is None and self.is_idle:
            self._close_after(self.header_timeout)

    def on_message_begin(self) -> None:
        """Begin a request."""
        if len(self.pipeline) >= MOST_PIPELINED:
            raise ValueError("too many requests at once")
        super().on_message_begin()
        self.scope["extensions"] = {DRAINED: self.flow.drain}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        """Begin to answer, unless the head is too large."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > LARGEST_HEAD or len(self.headers) > MOST_HEADERS:
            self._refusal = TOO_LARGE
            raise ValueError("too large a head")
        self._stop()
        self._unparsed = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        self._stop()
        self._unparsed = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or drop the rest of this one for some seconds."""
        self._idle_since = self.loop.time()
        if self.cycle.response_complete and self.cycle.more_body:
            self._close_after(self.linger_timeout)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or beyond a limit."""
        self._refuse(self._refusal)

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._unread, self._unread_since = self.transport.get_write_buffer_size(), self.loop.time()
        self._check_unread()

    def resume_writing(self) -> None:
        """Wait no more: the client has read all."""
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _check_unread(self) -> None:
        """Close the connection if its client has read too little for too long; otherwise look again later."""
        read = self._unread - self.transport.get_write_buffer_size()
        left = self._unread_since + self.unread_timeout + read / LEAST_RATE - self.loop.time()
        if left <= 0:
            self.transport.abort()
        else:
            self._unread_timer = self.loop.call_later(left, self._check_unread)

    def _refuse(self, refusal: bytes) -> None:
        """Answer with an error, unless others are being answered, and close the connection after some seconds."""
        if not self.pipeline:
            if self.is_idle or not self.cycle.response_started:
                self.transport.write(refusal)
            if not self.is_idle:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
        self._is_refused = True
        self._unset_keepalive_if_required()
        self._close_after(self.linger_timeout)

    def _close_after(self, seconds: float) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


def server_config(app: Any, seconds: float, requests: int = 256, trusted_proxies: Sequence[str] = ()) -> uvicorn.Config:
    """Return the settings of uvicorn for an app.

    seconds: to finish what it answers when it stops. requests: the maximum number that are answered at once.
    trusted_proxies: addresses and networks whose X-Forwarded-For names the client; uvicorn would trust the loopback.
    """
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        limit_concurrency=max(LEAST_CONNECTIONS, 2 * requests),
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(seconds) + 1,
    )
