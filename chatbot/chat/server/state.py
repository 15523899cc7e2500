"""What all routes of a server share: its models, its limits, its metrics and the log of conversations."""

import asyncio
import dataclasses
import logging
import math
import queue
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request

from chatbot.chat.server.models import Models
from chatbot.chat.service import RateLimit
from chatbot.decoding.reply_text import Origin

# Seconds: the bounds of the histogram of the time of requests.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# Bytes of a body: the text of 1,000 turns of 500 Chinese characters.
MOST_BYTES = 2 << 20
# Seconds for a client to send a body.
BODY_TIMEOUT = 30.0
# Control characters, and those that turn the direction of text: of clients, in a log. JSON leaves these as they are.
INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
log = logging.getLogger(__name__)
MOST_RECENT = 20_000  # replies that may be rated, and conversations: some megabytes
RATINGS_A_MINUTE = 20
REPEAT_SECONDS = 600.0  # after which a question that is asked again gets the best reply once more
Value = TypeVar("Value")
MOST_WAITING = 1000  # lines that wait to be written
LAST_SECONDS = 5.0  # for the lines that wait when the server stops


@dataclasses.dataclass(frozen=True)
class Limits:
    """Who may use a server, and how much.

    keys: one of them is needed; empty: none is; a list may change. hosts: names that the Host header may have, without
    port; None: any. rate: replies, and other requests, a minute of one client; 0: any number. requests: most that are
    answered at once. live_ratings: whether ratings change replies where no key is needed, too.
    """

    keys: Sequence[bytes] = ()
    hosts: Collection[str] | None = None
    rate: int = 0
    requests: int = 256
    most_bytes: int = MOST_BYTES
    body_timeout: float = BODY_TIMEOUT
    live_ratings: bool = False


class Metrics:
    """What a server counts. It has a registry of its own, so that a process may have several servers.

    waiting: returns the number of questions that wait.
    """

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self.requests = Counter(
            "chatbot_requests", "Requests by route and status", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "chatbot_request_seconds", "Time to the end of a response", ["route"], buckets=BUCKETS, registry=registry
        )
        self.active = Gauge("chatbot_active_requests", "Requests that are being answered", registry=registry)
        self.replies = Counter("chatbot_replies", "Replies by model", ["model"], registry=registry)
        self.tokens = Counter("chatbot_tokens", "Tokens by model and kind", ["model", "kind"], registry=registry)
        Gauge("chatbot_waiting_questions", "Questions that wait for an engine", registry=registry).set_function(waiting)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class LineLog:
    """Writes lines in a thread of its own, so that whoever reads them cannot stop the server.

    Lines that cannot be written are dropped, which is said once. flag: that asks for it. write: writes a line; what it
    raises is an error of the log, and not of the request.
    """

    def __init__(self, flag: str, write: Callable[[str], None]) -> None:
        self._flag = flag
        self._write = write
        self._lines: queue.Queue[str | None] = queue.Queue(MOST_WAITING)
        self._has_failed = False
        self._thread: threading.Thread | None = None

    def add(self, line: str) -> None:
        """Write a line soon. Raises nothing. Call it from one thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._flag, daemon=True)
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
            except Exception as error:  # without the log, the server still answers
                self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.error("%s: the log cannot be written, and lines of it are lost: %s", self._flag, reason)


class Recent(Generic[Value]):
    """What was kept last, for some seconds, by a hash of its key, which may be long. For the event loop's thread."""

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds = seconds
        self._values: OrderedDict[int, tuple[Value, float]] = OrderedDict()

    def keep(self, key: Hashable, value: Value) -> None:
        """Keep a value, also in place of an earlier one."""
        self._values[hash(key)] = value, time.monotonic()
        self._values.move_to_end(hash(key))
        if len(self._values) > MOST_RECENT:
            self._values.popitem(last=False)

    def get(self, key: Hashable) -> Value | None:
        """Return a value; None for one that was not kept, or not lately."""
        value, kept = self._values.get(hash(key), (None, math.inf))
        return value if time.monotonic() < kept + self._seconds else None


@dataclasses.dataclass
class ServerState:
    """What all routes of a server share. stopping: whether a signal has asked it to end.

    origins: where replies came from, by model, question and reply. repeats: how often it was answered, by who asks and
    what. conversations: gets a line of JSON for each answered question, access: a line for each request; None: no log.
    ratings: the file to which ratings of replies are appended; None: none are collected.
    """

    models: Models
    limits: Limits
    metrics: Metrics
    rate_limit: RateLimit
    request_timeout: float
    conversations: LineLog | None = None
    access: LineLog | None = None
    ratings: Path | None = None
    stopping: bool = False
    origins: Recent[Origin] = dataclasses.field(default_factory=Recent)
    repeats: Recent[int] = dataclasses.field(default_factory=lambda: Recent(REPEAT_SECONDS))
    # Bodies are parsed one at a time.
    ratings_limit: RateLimit = dataclasses.field(default_factory=lambda: RateLimit(RATINGS_A_MINUTE))
    parsing: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


def state_of(request: Request) -> ServerState:
    """Return the state of the server that a request came to."""
    state: ServerState = request.app.state.server
    return state
