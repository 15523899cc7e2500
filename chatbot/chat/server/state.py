"""What all routes of a server share."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator

from starlette.requests import Request

from chatbot.chat.server.conversation_log import ConversationLog
from chatbot.chat.server.metrics import Metrics
from chatbot.chat.server.models import Models
from chatbot.chat.server.rates import Rates


@dataclasses.dataclass
class ServerState:
    """What all routes of a server share. stopping: whether a signal has asked it to end.

    conversations: gets a line of JSON for each answered question; None: no conversation is logged.
    """

    models: Models
    metrics: Metrics
    rates: Rates
    request_timeout: float
    conversations: ConversationLog | None = None
    stopping: bool = False
    _lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn to work on the event loop. The next one comes after a pause as long as that work."""
        await self._lock.acquire()
        begin = time.perf_counter()
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(time.perf_counter() - begin, self._lock.release)


def state_of(request: Request) -> ServerState:
    """Return the state of the server that a request came to."""
    state: ServerState = request.app.state.server
    return state
