"""What all routes of a server share: its models, its limits and its metrics."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request

from chatbot.chat.server.models import Models
from chatbot.chat.service import RateLimit

# Seconds: the bounds of the histogram of the time of requests.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# Bytes of a body: the text of 1,000 turns of 500 Chinese characters.
MOST_BYTES = 2 << 20
# Seconds for a client to send a body.
BODY_TIMEOUT = 30.0
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Who may use a server, and how much.

    keys: one of them is needed; empty: none is. hosts: names that the Host header may have, without port; None: any.
    rate: replies, and other requests, a minute of one client; 0: any number. requests: most that are answered at once.
    """

    keys: Sequence[bytes] = ()
    hosts: Collection[str] | None = None
    rate: int = 0
    requests: int = 256
    most_bytes: int = MOST_BYTES
    body_timeout: float = BODY_TIMEOUT


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


@dataclasses.dataclass
class ServerState:
    """What all routes of a server share. stopping: whether a signal has asked it to end.

    conversations: writes a line of JSON for each answered question; None: no conversation is logged.
    """

    models: Models
    limits: Limits
    metrics: Metrics
    rate_limit: RateLimit
    request_timeout: float
    conversations: Callable[[str], None] | None = None
    stopping: bool = False
    # Bodies are parsed one at a time.
    parsing: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    _log_failed: bool = False

    def log_conversations(self, lines: Iterable[str]) -> None:
        """Log lines of JSON, if conversations are logged. Lines that cannot be written are lost, which is said once."""
        if self.conversations is None:
            return
        try:
            for line in lines:
                self.conversations(line)
        except (OSError, ValueError) as error:
            if not self._log_failed:
                self._log_failed = True
                log.error("--log-conversations: the log cannot be written, and lines of it are lost: %s", error)


def state_of(request: Request) -> ServerState:
    """Return the state of the server that a request came to."""
    state: ServerState = request.app.state.server
    return state
