"""Connections end whose clients are slow, send too much before a body, or leave an answer unread."""

import asyncio
import json
import math
from collections import Counter
from typing import Any, NamedTuple

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

# Of the line and the headers of a request, those after a body in chunks included.
LARGEST_HEAD, MOST_HEADERS = 1 << 16, 200
# Requests that a client may send before the first of them is answered.
MOST_PIPELINED = 16
# Seconds for a client to send the line and the headers of a request.
HEADER_TIMEOUT = 15.0
# Seconds that a connection without a request stays open. Clients must close it first: one that sends a request while
# the server closes loses it. httpx waits for 5 s, which is uvicorn's default, too, and nginx for 60 s.
KEEP_ALIVE = 75
# Connections that may be open at once; at least two for each request that may be answered.
LEAST_CONNECTIONS = 512
# Bytes that are read and parsed at a time; other connections have their turn in between.
READ_SIZE = 1 << 14
# Seconds that a client may keep an answer waiting, and one more for each so many bytes that it reads.
UNREAD_TIMEOUT, LEAST_RATE = 20.0, 4096
# For how long, and up to how many bytes, the rest of a refused request is read and dropped. A socket that is closed
# with unread data resets the connection, and the client may lose the response.
LINGER_TIMEOUT, LINGER_BYTES = 5.0, 4 << 20
# In the `extensions` of a request's scope: an asynchronous function that returns when all that was sent has left this
# process, or the connection is closed.
DRAINED = "chatbot.drained"


class Refusal(NamedTuple):
    """An error that ends a connection."""

    status: int
    message: str
    code: str


NO_HTTP = Refusal(400, "The request is not valid HTTP", "invalid_http")
TOO_LARGE = Refusal(
    431, f"The headers have more than {LARGEST_HEAD:,} bytes, or are more than {MOST_HEADERS}", "headers_too_large"
)
TOO_MANY_REQUESTS = Refusal(400, f"At most {MOST_PIPELINED} requests may wait for their answers", "too_many_requests")
TOO_MANY_CONNECTIONS = Refusal(503, "Too many connections are open; try again", "busy")


def response_of(refusal: Refusal) -> bytes:
    """Return the bytes of the response, whose body is an error as `ApiError` has it."""
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    error = {"message": refusal.message, "type": kind, "param": None, "code": refusal.code}
    body = json.dumps({"error": error}).encode()
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return STATUS_LINE[refusal.status] + head + body


class RefusedHeadError(Exception):
    """The head of a request is beyond a limit. Raised within the parser, which ends."""


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits: of the time and the size of a head, of unread answers, and of connections.

    Where uvicorn's `limit_concurrency` is reached, a new connection takes the place of an idle one, the oldest of the
    address that has most. `Gate` limits the time and the size of bodies, and the time of replies.
    """

    header_timeout = HEADER_TIMEOUT
    unread_timeout = UNREAD_TIMEOUT
    linger_timeout = LINGER_TIMEOUT
    _timer: asyncio.TimerHandle | None = None  # of a head, or of the rest of a refused request
    _unread_timer: asyncio.TimerHandle | None = None
    _refusal = NO_HTTP
    _head = 0  # bytes of the parsed parts of the current head
    _rest = b""  # read, and not parsed yet
    _unparsed = 0  # bytes since a head ended, or a part of a body came
    _running: RequestResponseCycle | None = None  # the request that is being answered, or was last
    _due: Refusal | None = None  # to be sent after the answers before
    _dropped: int | None = None  # bytes after a refused request; None: none was refused
    _ends = False  # whether all that is to be sent was written
    _written = 0  # bytes of the current answer
    _sent = 0  # bytes of it that had left this process when the client first kept it waiting
    _blocked = 0.0  # seconds for which the client kept the current answer waiting, before the time of `_blocked_at`
    _blocked_at = 0.0
    _idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head, or refuse the connection if there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # each byte that waits is noticed by `pause_writing`
        self._idle_since = self.loop.time()
        self._wait()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            others = [other for other in self.connections - {self} if isinstance(other, Connection) and other.is_idle]
            numbers = Counter(other.address for other in others)
            if numbers:
                oldest = max(others, key=lambda other: (numbers[other.address], -other._idle_since))
                self.connections.discard(oldest)
                oldest.transport.abort()
            else:
                self.connections.discard(self)
                transport.write(response_of(TOO_MANY_CONNECTIONS))
                transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        self._stop_unread()
        self._leave()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return not self.pipeline and (self._running is None or self._running.response_complete)

    @property
    def address(self) -> str:
        """The address of the client."""
        return self.client[0] if self.client else ""

    def data_received(self, data: bytes) -> None:
        """Parse what was read, a part at a time, so that other connections have their turn in between."""
        if self._dropped is not None:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self.transport.abort()
        elif self._rest or len(data) > READ_SIZE:
            self.transport.pause_reading()
            if not self._rest:
                self.loop.call_soon(self._parse_rest)
            self._rest += data
        else:
            self._parse(data)

    def _parse_rest(self) -> None:
        """Parse the next part of what was read."""
        if self.is_closing():
            self._rest = b""
            return
        part, self._rest = self._rest[:READ_SIZE], self._rest[READ_SIZE:]
        self._parse(part)
        if self._rest:
            self.loop.call_soon(self._parse_rest)
        elif not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > LARGEST_HEAD:
            self._refuse(TOO_LARGE)
        elif self._timer is None and self.is_idle and not self.is_closing():
            self._wait()  # empty lines before a request, or the rest of a body, end the time of idle connections

    def on_message_begin(self) -> None:
        """Wait for the head of a request, which may not be the first one."""
        if len(self.pipeline) >= MOST_PIPELINED:
            self._refusal = TOO_MANY_REQUESTS
            raise RefusedHeadError
        super().on_message_begin()
        self.scope["extensions"] = {DRAINED: self.flow.drain}  # type: ignore[dict-item]
        self._head = 0
        if self._timer is None:
            self._wait()

    def on_url(self, url: bytes) -> None:
        """Count a part of a head."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a part of a head."""
        self._count(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Wait no more."""
        self._stop()
        self._unparsed = 0
        super().on_headers_complete()
        self.cycle.transport = self  # type: ignore[assignment]
        if not self.pipeline:
            self._running = self.cycle
        if not self.flow.write_paused:
            self._written, self._sent, self._blocked = 0, 0, 0.0

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        self._unparsed = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request; close the connection if the body of this one was not read to its end."""
        self._idle_since = self.loop.time()
        if self._due is not None and self.cycle.more_body and len(self.pipeline) == 1:
            self.pipeline.clear()  # the refused request, whose body does not end
        if self.pipeline:
            self._running = self.pipeline[-1][0]  # which is answered now
        super().on_response_complete()
        if self.is_idle and self._due is not None:
            self.write(response_of(self._due))
            self._linger()
        elif self.is_idle and self.cycle.more_body:
            self.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or beyond a limit."""
        self._refuse(self._refusal)

    # What an answer is written to.
    def write(self, data: bytes) -> None:
        """Send a part of an answer, unless the connection ends."""
        if not self.is_closing():
            self._written += len(data)
            self.transport.write(data)

    def close(self) -> None:
        """Close the connection when all has been sent."""
        if self.cycle is not None and self.cycle.more_body:
            self._linger()
        else:
            self.transport.close()

    def is_closing(self) -> bool:
        """Return whether the connection closes."""
        return self._ends or self.transport.is_closing()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._blocked_at = self.loop.time()
        if not self._sent:
            self._sent = self._written - self.transport.get_write_buffer_size()
        self._check_unread()

    def resume_writing(self) -> None:
        """Wait no more: the client has read all."""
        super().resume_writing()
        self._blocked += self.loop.time() - self._blocked_at
        self._stop_unread()

    def _check_unread(self) -> None:
        """Close the connection if its client has kept the answer waiting for too long; otherwise look again later."""
        read = self._written - self.transport.get_write_buffer_size() - self._sent
        left = self.unread_timeout + read / LEAST_RATE - self._blocked - (self.loop.time() - self._blocked_at)
        if left <= 0:
            self.transport.abort()
        else:
            self._unread_timer = self.loop.call_later(left, self._check_unread)

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > LARGEST_HEAD or len(self.headers) >= MOST_HEADERS:
            self._refusal = TOO_LARGE
            raise RefusedHeadError

    def _refuse(self, refusal: Refusal) -> None:
        """Answer with an error, after the requests before, and close the connection."""
        if self.is_idle or (self._running is self.cycle and self.cycle.more_body):
            if self.is_idle or not self.cycle.response_started:
                self.write(response_of(refusal))
            self._linger()
        elif self._dropped is None:
            self._drop()
            self._due = refusal

    def _drop(self) -> None:
        """Drop what the client sends from now on."""
        self._dropped, self._rest = 0, b""
        self._stop()
        self.flow.resume_reading()
        self.transport.resume_reading()

    def _linger(self) -> None:
        """Close the connection when its client has, at the latest after some seconds or bytes, which are dropped."""
        if self.is_closing():
            return
        self._ends = True
        self._drop()
        self._unset_keepalive_if_required()
        self._leave()
        self._timer = self.loop.call_later(self.linger_timeout, self.transport.close)
        try:
            self.transport.write_eof()
        except OSError:  # the client has reset the connection
            self.transport.abort()

    def _leave(self) -> None:
        """Let the request that is being answered know that nobody waits for it."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.header_timeout, self._end_wait)

    def _end_wait(self) -> None:
        """Close the connection, unless reading rests because an earlier request is being answered."""
        if self.is_idle:
            self.transport.close()
        else:
            self._wait()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _stop_unread(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        self._unread_timer = None


def server_config(app: Any, seconds: float, requests: int = 256) -> uvicorn.Config:
    """Return the settings of uvicorn for an app.

    seconds: to finish what it answers when it stops. requests: the maximum number that are answered at once.
    """
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=max(LEAST_CONNECTIONS, 2 * requests),
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(seconds) + 1,
    )
