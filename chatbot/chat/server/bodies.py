"""From the bytes of a body to a value, in a time that leaves other requests their turn.

Python's JSON parser holds the interpreter's lock until it is done, so a thread would not help; its work is bounded, and
bodies that have arrived together are read one at a time, with a turn for all other requests in between.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from chatbot.chat.server.errors import ApiError
from chatbot.chat.server.state import state_of

# Commas, and beginnings of lists and objects, outside of texts: several for each of 2,000 messages.
MOST_VALUES = 20_000
MOST_DIGITS = 1000  # of a number; the time to read one grows with their square


class BodyRequest(Request):
    """A request whose JSON is read within the bounds."""

    async def json(self) -> Any:
        """Return the value of the body. Raises ValueError or RecursionError if it is not JSON."""
        body = await self.body()
        async with state_of(self).turn():
            return value_of(body)


class BodyRoute(APIRoute):
    """A route whose bodies have a bounded number of values."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            bounded = BodyRequest(request.scope, request.receive)
            if body := await bounded.body():  # who has none, as for /health, need not wait for a turn
                async with state_of(request).turn():
                    check_values(body)
            return await handle(bounded)

        return handle_bounded


def check_values(body: bytes) -> None:
    """Raise ApiError (400) for a body with too many values. It need not be JSON."""
    if _structure(body) <= MOST_VALUES:
        return
    # Some may be in texts, which are every second part between quotation marks.
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') > 4 * MOST_VALUES or _structure(b"".join(body.split(b'"')[::2])) > MOST_VALUES:
        message = f"The body has more than {MOST_VALUES:,} values; send fewer messages or fields"
        raise ApiError(400, message, code="too_many_values")


def _structure(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def value_of(body: bytes) -> Any:
    """Return the value of a JSON text, without halves of characters. Raises ValueError or RecursionError if it is none.

    JavaScript makes such halves where it cuts an emoji in two. They cannot be encoded.
    """
    value = _DECODER.decode(body.decode("utf-8-sig"))
    return _without_halves(value) if b"\\ud" in body or b"\\uD" in body else value


def _without_halves(value: Any) -> Any:
    """Return a value with U+FFFD for each half of a character in its texts; names of fields stay as they are."""
    top = [value]
    left: list[dict[Any, Any] | list[Any]] = [top]
    while left:
        container = left.pop()
        for key, item in list(container.items() if isinstance(container, dict) else enumerate(container)):
            if isinstance(item, str):
                container[key] = whole_characters(item)
            elif isinstance(item, (dict, list)):
                left.append(item)
    return top[0]


def whole_characters(text: str) -> str:
    """Return a text with U+FFFD for each half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # In UTF-8, a half has three bytes, each of which is replaced.
        replaced = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        return replaced.replace("\ufffd" * 3, "\ufffd")
    return text


def _number(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def number(digits: str) -> Any:
        if len(digits) > MOST_DIGITS:
            raise ValueError(f"a number of {len(digits):,} digits")
        return kind(digits)

    return number


_DECODER = json.JSONDecoder(parse_int=_number(int), parse_float=_number(float))
