"""What all routes of a server share."""

import asyncio
import dataclasses

from starlette.requests import Request

from chatbot.chat.server.conversation_log import ConversationLog
from chatbot.chat.server.metrics import Metrics
from chatbot.chat.server.models import Models
from chatbot.chat.server.rates import Rates


@dataclasses.dataclass
class ServerState:
    """What all routes of a server share. stopping: whether a signal has asked it to end.

    conversations: gets a line of JSON for each answered question; None: no conversation is logged. body_turn: held by
    the request whose body is being read.
    """

    models: Models
    metrics: Metrics
    rates: Rates
    request_timeout: float
    conversations: ConversationLog | None = None
    stopping: bool = False
    body_turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


def state_of(request: Request) -> ServerState:
    """Return the state of the server that a request came to."""
    state: ServerState = request.app.state.server
    return state
