"""/metrics, for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


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
            "chatbot_request_seconds", "Time to the end of a response", ["route"], buckets=SECONDS, registry=registry
        )
        self.active = Gauge("chatbot_active_requests", "Requests that are being answered", registry=registry)
        self.replies = Counter("chatbot_replies", "Replies by model", ["model"], registry=registry)
        self.tokens = Counter("chatbot_tokens", "Tokens by model and kind", ["model", "kind"], registry=registry)
        Gauge("chatbot_waiting_questions", "Questions that wait for an engine", registry=registry).set_function(waiting)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
