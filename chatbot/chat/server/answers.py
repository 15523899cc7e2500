"""Between the thread of an engine and the event loop: the pieces of replies as they are found."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request

from chatbot.chat.server.problems import ApiError, busy
from chatbot.errors import UserError
from chatbot.inference.engine import BusyError, Engine
from chatbot.inference.questions import Piece, Question, Ticket, Usage


class ClientLeftError(Exception):
    """The client has closed the connection."""


async def answers(
    engine: Engine, questions: Sequence[Question], request: Request, timeout: float
) -> AsyncGenerator[Piece | Usage, None]:
    """Yield the pieces of the replies as they are found, and the usage of each question.

    The replies are numbered over all questions, which ask for the same number. request: its body was read. timeout:
    seconds for all replies. However this ends, the engine computes no more of them.

    Raises ClientLeftError, and ApiError after the timeout, if too many questions wait, and for settings that the model
    does not admit.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Queue[tuple[int, Piece | Usage | Exception]] = asyncio.Queue()

    def receive(number: int, item: Piece | Usage | Exception) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(found.put_nowait, (number, item))

    late = ApiError(504, f"No reply within {timeout:g} seconds", code="timeout")
    timer = loop.call_later(timeout, found.put_nowait, (0, late))
    watch = asyncio.create_task(_watch(request, found))
    tickets: list[Ticket] = []
    try:
        for number, question in enumerate(questions):
            tickets.append(engine.submit(question, functools.partial(receive, number)))
        left = len(questions)
        while left:
            number, item = await found.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Usage):
                left -= 1
                yield item
            else:
                yield item._replace(reply=number * questions[number].replies + item.reply)
    except BusyError:
        raise busy("Too many questions are waiting; try again in a second") from None
    except UserError as error:
        raise ApiError(400, str(error), code="invalid_value") from error
    finally:
        timer.cancel()
        watch.cancel()
        for ticket in tickets:
            ticket.cancel()


async def _watch(request: Request, found: "asyncio.Queue[Any]") -> None:
    """Put a ClientLeftError when the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    found.put_nowait((0, ClientLeftError()))
