"""From the bytes of a body to a value, in a time that leaves other requests their turn.

A JSON parser holds the interpreter's lock until it is done, so a thread would not help; its work is bounded, and bodies
that have arrived together are read one at a time, with a turn for all other requests in between.
"""

import asyncio
import codecs
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.responses import Response

from chatbot.chat.server.errors import CLIENT_LEFT, ApiError
from chatbot.chat.server.state import state_of
from chatbot.chat.service import ReceiveEvent

# Commas, and beginnings of lists and objects, outside of texts: several for each of 2,000 messages.
MOST_VALUES = 20_000
REMEDY = "curl sends a file by --data-binary @FILE; cmd.exe knows no single quotes"


class BodyRequest(Request):
    """A request whose body is read within the limits of its server, and its JSON within the bounds."""

    async def body(self) -> bytes:
        """Return the body. Raises ApiError for one that is too large, too slow, not JSON, or incomplete."""
        if hasattr(self, "_body"):
            return self._body
        limits = state_of(self).limits
        length = self.headers.get("content-length", "0")
        if has_body(self.headers):
            kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
                raise ApiError(415, "The body must be JSON, with Content-Type: application/json")
        if length.isdecimal() and int(length[:20]) > limits.most_bytes:
            raise _too_large(limits.most_bytes)
        try:
            self._body = await asyncio.wait_for(_read(self.receive, limits.most_bytes), limits.body_timeout)
        except asyncio.TimeoutError:
            raise ApiError(408, "The body was not received in time") from None
        return self._body

    async def json(self) -> Any:
        """Return the value of the body. Raises ApiError as `check_values`, and for what is not JSON in UTF-8."""
        body = (await self.body()).removeprefix(codecs.BOM_UTF8)
        async with state_of(self).parsing:
            await asyncio.sleep(0)  # other requests have their turn
            check_values(body)
            try:
                return orjson.loads(body.decode())
            except ValueError as error:  # it says which codec cannot decode it, or what is no JSON, and where
                raise ApiError(400, f"The body is not JSON in UTF-8: {error}; {REMEDY}", code="invalid_json") from None


class BodyRoute(APIRoute):
    """A route whose bodies have a bounded number of values."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            return await handle(BodyRequest(request.scope, request.receive))

        return handle_bounded


async def _read(receive: ReceiveEvent, most: int) -> bytes:
    """Return a body of at most this number of bytes. Raises ApiError."""
    body = bytearray()
    more_body = True
    while more_body:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(CLIENT_LEFT, "The client left")
        body += message.get("body", b"")
        if len(body) > most:
            raise _too_large(most)
        more_body = message.get("more_body", False)
    return bytes(body)


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"The body has more than {most:,} bytes", code="body_too_large")


def has_body(headers: Headers) -> bool:
    """Return whether a request has a body."""
    return headers.get("content-length", "0").strip("0") != "" or "transfer-encoding" in headers


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
