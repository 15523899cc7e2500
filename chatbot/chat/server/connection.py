"""HTTP connections with limits on headers, slow clients and the number of connections."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from chatbot.chat.server.errors import ApiError

# The maximum size of the request line and the headers, in bytes.
MAX_HEAD_BYTES = 1 << 16
# The maximum number of headers.
MAX_HEADERS = 200
# The maximum number of pipelined requests: requests on a connection that wait for the response to an earlier request.
MAX_PIPELINED = 16
# The number of seconds before an idle connection is closed. Clients such as nginx close it earlier, after at most
# 60 s. If the server closed it first, a client could send a request at the same moment and get no response.
KEEP_ALIVE = 75
# The server accepts twice as many connections as concurrent requests, but at least this number.
MIN_CONNECTIONS = 512
# The minimum rate at which a client must read a response, in bytes per second.
MIN_READ_RATE = 4096
# The name of an ASGI extension: a coroutine function that waits until the response has left the write buffer.
DRAINED = "chatbot.drained"


def _closing_response(status: int, code: str, message: str) -> bytes:
    """Return the bytes of an error response with the header "Connection: close"."""
    body = ApiError(status, message, code=code).body()
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return STATUS_LINE[status] + head + body


NO_HTTP = _closing_response(400, "invalid_http", "The request is not valid HTTP")
TOO_LARGE = _closing_response(
    431,
    "headers_too_large",
    f"The request has more than {MAX_HEAD_BYTES:,} bytes of headers, or more than {MAX_HEADERS} headers",
)
TOO_MANY_CONNECTIONS = _closing_response(503, "busy", "Too many connections are open; try again")


class Connection(HttpToolsProtocol):
    """A uvicorn connection with limits on headers, unread responses and the number of connections.

    If too many connections are open, a new connection replaces the connection that has been idle the longest. Limits
    on request bodies are enforced elsewhere, in `Gate`.

    If a method that starts with `on_` raises an exception, uvicorn calls `send_400_response`.
    """

    # The timeout for receiving the request line and the headers, in seconds.
    header_timeout = 15.0
    # The maximum number of seconds for which a client can leave a response unread.
    unread_timeout = 20.0
    # After a request is refused, the connection stays open for this number of seconds. If it were closed at once,
    # while the client is still sending, the client might not receive the response.
    linger_timeout = 5.0
    _timer: asyncio.TimerHandle | None = None  # Enforces header_timeout and linger_timeout.
    _unread_timer: asyncio.TimerHandle | None = None
    _parser_error_response = NO_HTTP
    _is_refused = False
    _unparsed = 0  # The number of received bytes that the HTTP parser has not yet reported as headers or body.
    _unread = 0  # The number of bytes that were in the write buffer when writing was paused.
    _unread_since = 0.0
    _idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request.

        If too many connections are open, an idle one is closed. If there is no idle one, this connection is refused.
        """
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # This calls `pause_writing` as soon as a byte cannot be sent.
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
        """Cancel all timers."""
        self._cancel_timer()
        self.resume_writing()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether the connection has no active request."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Parse received data. Data on an idle connection, even an empty line, starts the header timeout."""
        if self._is_refused:
            return
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEAD_BYTES:
            self._refuse(TOO_LARGE)
        elif self._timer is None and self.is_idle:
            self._close_after(self.header_timeout)

    def on_message_begin(self) -> None:
        """Start a new request, unless too many pipelined requests are waiting."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
        super().on_message_begin()
        self.scope["extensions"] = {DRAINED: self.flow.drain}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        """Process the request, unless its headers are too large."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._parser_error_response = TOO_LARGE
            raise ValueError("the headers are too large")
        self._cancel_timer()
        self._unparsed = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Process a part of a body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Process the end of a request."""
        self._cancel_timer()
        self._unparsed = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request.

        If the client has not sent the entire request, the connection is closed after `linger_timeout` seconds.
        """
        self._idle_since = self.loop.time()
        if self.cycle.response_complete and self.cycle.more_body:
            self._close_after(self.linger_timeout)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is invalid or exceeds a limit."""
        self._refuse(self._parser_error_response)

    def pause_writing(self) -> None:
        """Start the timeout for the client to read the response."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._unread_since = self.loop.time()
        self._check_unread()

    def resume_writing(self) -> None:
        """Cancel the read timeout once the client has read all data."""
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _check_unread(self) -> None:
        """Abort the connection if the client reads too slowly; otherwise schedule the next check."""
        bytes_read = self._unread - self.transport.get_write_buffer_size()
        remaining = self._unread_since + self.unread_timeout + bytes_read / MIN_READ_RATE - self.loop.time()
        if remaining <= 0:
            self.transport.abort()
        else:
            self._unread_timer = self.loop.call_later(remaining, self._check_unread)

    def _refuse(self, response: bytes) -> None:
        """Send an error response and close the connection after a delay.

        No response is sent if earlier requests on this connection are still waiting for theirs.
        """
        if not self.pipeline:
            if self.is_idle or not self.cycle.response_started:
                self.transport.write(response)
            if not self.is_idle:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
        self._is_refused = True
        self._unset_keepalive_if_required()
        self._close_after(self.linger_timeout)

    def _close_after(self, seconds: float) -> None:
        self._cancel_timer()
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


def server_config(app: Any, seconds: float, requests: int = 256, trusted_proxies: Sequence[str] = ()) -> uvicorn.Config:
    """Return the uvicorn configuration for an app.

    Args:
        app: The ASGI app.
        seconds: The maximum number of seconds to wait for active requests when the server shuts down.
        requests: The maximum number of concurrent requests.
        trusted_proxies: The addresses and networks of proxies whose X-Forwarded-For header is trusted. By default, the
            header is ignored, even if the proxy runs on the same machine.
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
        limit_concurrency=max(MIN_CONNECTIONS, 2 * requests),
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(seconds) + 1,
    )
