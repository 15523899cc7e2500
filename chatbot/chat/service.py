"""What the server and the bot share: the limit of the rate, and the way of the engine's pieces into the event loop."""

import asyncio
import contextlib
import functools
import math
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from chatbot.inference.request import Message, Piece, Question, Receive, Request, Usage

# As Engine.submit.
Submit = Callable[[Question, Receive], Request]
ReceiveEvent = Callable[[], Awaitable[Mapping[str, Any]]]  # of an ASGI request

Result = TypeVar("Result")

TOO_LATE = "No answer within the time limit of a request; try again"
# Clients that a limit remembers.
MOST_CLIENTS = 10_000


class _Bucket(NamedTuple):
    """What is left of a client's limit, at what time, and the number of refusals since it was last let through."""

    left: float
    time: float
    refusals: int


class RateLimit:
    """Limits each client: at most `per_minute` at once, and as many in each minute after (token bucket).

    A client is forgotten after a minute in which it did nothing, which changes nothing any more, or when it did nothing
    for the longest time of `most`.

    per_minute: 0 for no limit. clock: returns the time in seconds.
    """

    def __init__(self, per_minute: int, most: int = MOST_CLIENTS, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._most = most
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # the least recently used first

    def wait(self, client: str, number: int = 1) -> int:
        """Count a number if it is within the limit. Returns 0, or the seconds to wait until it is."""
        if not self.per_minute:
            return 0
        now = self._clock()
        while self._buckets and next(iter(self._buckets.values())).time <= now - 60:
            self._buckets.popitem(last=False)
        if client not in self._buckets and len(self._buckets) >= self._most:
            self._buckets.popitem(last=False)
        per_second = self.per_minute / 60
        before = self._buckets.get(client, _Bucket(self.per_minute, now, 0))
        left = min(self.per_minute, before.left + (now - before.time) * per_second)
        is_allowed = left >= number
        after = _Bucket(left - number, now, 0) if is_allowed else _Bucket(left, now, before.refusals + 1)
        self._buckets[client] = after
        self._buckets.move_to_end(client)
        return 0 if is_allowed else max(1, math.ceil((number - left) / per_second))

    def is_first_refusal(self, client: str) -> bool:
        """Return whether a client was refused now, and not before that."""
        return client not in self._buckets or self._buckets[client].refusals == 1


class ClientLeftError(Exception):
    """The client has closed the connection."""


async def while_waited_for(result: Coroutine[Any, Any, Result], seconds: float, receive: ReceiveEvent) -> Result:
    """Return the result of a coroutine, which is cancelled when nobody waits for it any more.

    seconds, receive: as for `answers`. Raises asyncio.TimeoutError, ClientLeftError, and what the coroutine raises.
    """
    task = asyncio.ensure_future(result)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        done, _ = await asyncio.wait([task, leaving], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        raise ClientLeftError if done else asyncio.TimeoutError(TOO_LATE)
    finally:
        task.cancel()
        leaving.cancel()


async def _left(receive: ReceiveEvent) -> None:
    """Return when the client has left. receive: of an ASGI request, whose body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def answers(
    submit: Submit, questions: Sequence[Question], seconds: float, receive: ReceiveEvent | None = None
) -> AsyncGenerator[Piece | Usage, None]:
    """Yield the pieces of the replies in the event loop as the engine finds them, and the usage of each question.

    The replies are numbered over all questions, which ask for the same number. seconds: for all replies. receive: of
    the ASGI request, whose body was read; None: there is none. However this ends, the engine computes no more of them.

    Raises BusyError, asyncio.TimeoutError, ClientLeftError, and what the engine gives in place of a reply.
    """
    loop = asyncio.get_running_loop()
    messages: asyncio.Queue[tuple[int, Message]] = asyncio.Queue()

    def take(number: int, message: Message) -> None:  # in the engine's thread
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(messages.put_nowait, (number, message))

    async def watch(receive: ReceiveEvent) -> None:
        await _left(receive)
        messages.put_nowait((0, ClientLeftError()))

    timer = loop.call_later(seconds, messages.put_nowait, (0, asyncio.TimeoutError(TOO_LATE)))
    watching = None if receive is None else asyncio.create_task(watch(receive))
    requests: list[Request] = []
    try:
        for number, question in enumerate(questions):
            requests.append(submit(question, functools.partial(take, number)))
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
        if watching is not None:
            watching.cancel()
        for request in requests:
            request.cancel()
