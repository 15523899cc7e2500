"""What all routes of a server share."""

import dataclasses
from collections.abc import Callable

from starlette.requests import Request

from chatbot.chat.server.metrics import Metrics
from chatbot.chat.server.models import Models


@dataclasses.dataclass
class ServerState:
    """What all routes of a server share. stopping: whether a signal has asked it to end.

    log_conversation: gets a line of JSON for each answered request; None: no conversation is logged.
    """

    models: Models
    metrics: Metrics
    request_timeout: float
    log_conversation: Callable[[str], None] | None = None
    stopping: bool = False


def state_of(request: Request) -> ServerState:
    """Return the state of the server that a request came to."""
    state: ServerState = request.app.state.server
    return state
