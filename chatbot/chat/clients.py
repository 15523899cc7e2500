"""Rate limits, timeouts and streaming of replies, shared by the HTTP server and the chat bot."""

import asyncio
import contextlib
import functools
import math
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from chatbot.inference.request import Message, Piece, Question, Receive, Request, Usage

# The type of `Engine.submit`.
Submit = Callable[[Question, Receive], Request]
# The type of an ASGI request's `receive` function.
ReceiveEvent = Callable[[], Awaitable[Mapping[str, Any]]]

Key = TypeVar("Key")
Value = TypeVar("Value")
Result = TypeVar("Result")

TIMEOUT_MESSAGE = "No answer within the time limit of a request; try again"
# The maximum number of clients that a rate limit tracks.
MAX_CLIENTS = 10_000


class Recent(Generic[Key, Value]):
    """A cache with a maximum size. A new value replaces the oldest one if the cache is full.

    Args:
        maximum: The maximum number of values.
        seconds: The number of seconds after which a value expires.
    """

    def __init__(self, maximum: int, seconds: float = math.inf) -> None:
        self._maximum = maximum
        self._seconds = seconds
        self._values: OrderedDict[Key, tuple[Value, float]] = OrderedDict()  # Ordered from oldest to newest.

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: Key, value: Value) -> None:
        """Store a value under a key, replacing any previous value."""
        now = time.monotonic()
        self._values[key] = value, now
        self._values.move_to_end(key)
        while len(self) > self._maximum or next(iter(self._values.values()))[1] <= now - self._seconds:
            self._values.popitem(last=False)

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, or None if the key is missing or its value has expired."""
        value, stored = self._values.get(key, (None, math.inf))
        return value if time.monotonic() < stored + self._seconds else None


class _Bucket(NamedTuple):
    """The token bucket of one client."""

    tokens: float  # The number of tokens at `time`.
    time: float
    refusals: int  # The number of consecutive refused requests.


class RateLimit:
    """Limits the request rate of each client with a token bucket.

    A bucket holds up to `per_minute` tokens. It is deleted after one idle minute, because it would then be full again.
    If there are more than `max_clients` clients, the bucket of the client that was idle the longest is deleted.

    Args:
        per_minute: The number of tokens that each client receives per minute; 0 disables the limit.
        max_clients: The maximum number of clients to track.
    """

    def __init__(self, per_minute: int, max_clients: int = MAX_CLIENTS) -> None:
        self.per_minute = per_minute
        self._buckets = Recent[str, _Bucket](max_clients, 60)

    def wait(self, client: str, number: int = 1) -> int:
        """Consume tokens from a client's bucket if enough are available.

        Returns:
            0 if the tokens were consumed, otherwise the number of seconds until they will be available.
        """
        if not self.per_minute:
            return 0
        now = time.monotonic()
        per_second = self.per_minute / 60
        old = self._buckets.get(client) or _Bucket(self.per_minute, now, 0)
        tokens = min(self.per_minute, old.tokens + (now - old.time) * per_second)
        is_allowed = tokens >= number
        new = _Bucket(tokens - number, now, 0) if is_allowed else _Bucket(tokens, now, old.refusals + 1)
        self._buckets.put(client, new)
        return 0 if is_allowed else max(1, math.ceil((number - tokens) / per_second))

    def is_first_refusal(self, client: str) -> bool:
        """Return whether the client's latest request is the first one to be refused since an accepted request."""
        bucket = self._buckets.get(client)
        return bucket is None or bucket.refusals == 1


class ClientLeftError(Exception):
    """Raised if the client has closed the connection."""


async def run_while_connected(result: Coroutine[Any, Any, Result], seconds: float, receive: ReceiveEvent) -> Result:
    """Return the result of a coroutine. Cancel the coroutine on timeout or if the client disconnects.

    Args:
        result: The coroutine.
        seconds: The timeout in seconds.
        receive: The `receive` function of the ASGI request. The body must already have been read.

    Raises:
        asyncio.TimeoutError: If the coroutine does not finish in time.
        ClientLeftError: If the client disconnects.
    """
    task = asyncio.ensure_future(result)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        done, _ = await asyncio.wait([task, disconnect], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        raise ClientLeftError if done else asyncio.TimeoutError(TIMEOUT_MESSAGE)
    finally:
        task.cancel()
        disconnect.cancel()


async def _wait_for_disconnect(receive: ReceiveEvent) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def stream_replies(
    submit: Submit, questions: Sequence[Question], seconds: float, receive: ReceiveEvent | None = None
) -> AsyncGenerator[Piece | Usage, None]:
    """Stream the replies to some questions: yield parts of their texts, and the token usage of each question.

    All questions must request the same number of replies. Replies are numbered consecutively across all questions.
    Closing the generator cancels the unfinished replies.

    Args:
        submit: Submits a question to the model. This is `Engine.submit`.
        questions: The questions to answer.
        seconds: The timeout for all replies, in seconds.
        receive: The `receive` function of the ASGI request, whose body must already have been read. None for a bot.

    Raises:
        BusyError: If too many questions are waiting.
        asyncio.TimeoutError: If the replies are not complete in time.
        ClientLeftError: If the client disconnects.
        Exception: Any exception that is raised while a reply is generated.
    """
    loop = asyncio.get_running_loop()
    messages: asyncio.Queue[tuple[int, Message]] = asyncio.Queue()

    def enqueue(number: int, message: Message) -> None:  # Called from an engine thread.
        with contextlib.suppress(RuntimeError):  # Raised if the event loop is closed.
            loop.call_soon_threadsafe(messages.put_nowait, (number, message))

    async def watch(receive: ReceiveEvent) -> None:
        await _wait_for_disconnect(receive)
        messages.put_nowait((0, ClientLeftError()))

    timer = loop.call_later(seconds, messages.put_nowait, (0, asyncio.TimeoutError(TIMEOUT_MESSAGE)))
    watcher = None if receive is None else asyncio.create_task(watch(receive))
    requests: list[Request] = []
    try:
        for number, question in enumerate(questions):
            requests.append(submit(question, functools.partial(enqueue, number)))
        unfinished = len(questions)
        while unfinished:
            number, message = await messages.get()
            if isinstance(message, Exception):
                raise message
            if isinstance(message, Usage):
                unfinished -= 1
                yield message
            else:
                yield message._replace(reply=number * questions[number].replies + message.reply)
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()
        for request in requests:
            request.cancel()
