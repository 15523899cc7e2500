"""The state that all routes of the server share: models, limits, metrics and logs."""

import asyncio
import dataclasses
import logging
import queue
import re
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request

from chatbot.chat.clients import RateLimit, Recent
from chatbot.chat.server.models import Models
from chatbot.decoding.reply_text import Origin

# The bucket boundaries of the histogram of request durations, in seconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# Matches control characters, and characters that change the direction of text. Clients could use them to forge log
# entries.
INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
log = logging.getLogger(__name__)
# The maximum number of values in the caches `origins` and `repeats`, which use a few megabytes together.
MAX_RECENT = 20_000
# The maximum number of ratings per client and minute.
RATINGS_PER_MINUTE = 20
# If a client repeats a question, it gets another reply. After this number of seconds, it gets the best reply again.
REPEAT_SECONDS = 600.0
# The maximum number of lines that wait to be written to a log.
MAX_QUEUED_LINES = 1000
# The maximum number of seconds to write the waiting lines of a log at shutdown.
CLOSE_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Attributes:
        keys: The valid API keys; empty if no key is required. The list can be changed while the server runs.
        hosts: The allowed host names in the Host header, without port; None to allow any host.
        rate: The maximum number of replies and other requests per minute for each client; 0 disables the limit.
        requests: The maximum number of concurrent requests.
        live_ratings: Whether ratings affect later replies even if the server requires no API key.
    """

    keys: Sequence[bytes] = ()
    hosts: Collection[str] | None = None
    rate: int = 0
    requests: int = 256
    live_ratings: bool = False


class Metrics:
    """The Prometheus metrics of a server. Each server in a process has its own metrics.

    Args:
        waiting: Returns the number of questions that are waiting for a model.
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
        self.active = Gauge("chatbot_active_requests", "Requests in progress", registry=registry)
        self.replies = Counter("chatbot_replies", "Replies by model", ["model"], registry=registry)
        self.tokens = Counter("chatbot_tokens", "Tokens by model and kind", ["model", "kind"], registry=registry)
        Gauge("chatbot_waiting_questions", "Questions queued for an engine", registry=registry).set_function(waiting)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class LineLog:
    """A log that a separate thread writes, so that a slow disk or pipe cannot block the server.

    Lines that cannot be written are dropped. An error message reports only the first dropped line.

    Args:
        flag: The command-line flag that enables the log, used as the name of the thread and in error messages.
        write: Writes a line. If `write` raises an exception, the line is dropped.
    """

    def __init__(self, flag: str, write: Callable[[str], None]) -> None:
        self._flag = flag
        self._write = write
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_QUEUED_LINES)
        self._has_failed = False
        self._thread: threading.Thread | None = None

    def add(self, line: str) -> None:
        """Add a line without blocking. Always call this method from the same thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._flag, daemon=True)
            self._thread.start()
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._report_loss("the output is not being read")

    def close(self) -> None:
        """Wait until all lines are written, but not longer than CLOSE_SECONDS."""
        if self._thread is not None:
            try:
                self._lines.put(None, timeout=CLOSE_SECONDS)
            except queue.Full:
                return
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write(line)
            except Exception as error:  # The server continues without the log.
                self._report_loss(f"{type(error).__name__}: {error}")

    def _report_loss(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.error("%s: cannot write the log; lines are lost: %s", self._flag, reason)


@dataclasses.dataclass
class ServerState:
    """The state that all routes of the server share.

    Attributes:
        models: The models that the server offers.
        limits: The API keys, allowed hosts and usage limits.
        metrics: The Prometheus metrics.
        rate_limit: The rate limit for replies and other requests.
        request_timeout: The timeout of a request in seconds.
        conversations: The log of questions with their replies, as JSON objects; None if disabled.
        access: The log of requests; None if disabled.
        ratings: The file to append ratings to; None if ratings are disabled.
        stopping: Whether the server has received a signal to stop.
        origins: Whether recent replies were generated or retrieved. The keys are hashes of model, question and reply.
        repeats: How often a client has recently asked the same question. The keys are hashes of client and question.
        ratings_limit: The rate limit for ratings.
        parsing: A lock to parse only one request body at a time.
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
    origins: Recent[int, Origin] = dataclasses.field(default_factory=lambda: Recent(MAX_RECENT))
    repeats: Recent[int, int] = dataclasses.field(default_factory=lambda: Recent(MAX_RECENT, REPEAT_SECONDS))
    ratings_limit: RateLimit = dataclasses.field(default_factory=lambda: RateLimit(RATINGS_PER_MINUTE))
    parsing: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


def server_state(request: Request) -> ServerState:
    """Return the state of the server that received a request."""
    state: ServerState = request.app.state.server
    return state
