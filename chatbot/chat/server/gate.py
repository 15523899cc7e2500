"""What every request passes first: who may ask, how often, and how much."""

import asyncio
import dataclasses
import ipaddress
import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatbot.chat.page.files import page_files
from chatbot.chat.server.connection import DRAINED
from chatbot.chat.server.errors import ApiError, busy, too_many
from chatbot.chat.server.keys import Keys
from chatbot.chat.server.state import Metrics
from chatbot.chat.service import ClientLeftError, LargeBodyError, RateLimit, read_body

log = logging.getLogger(__name__)
# Bytes of a body: the text of 1,000 turns of 500 Chinese characters.
MOST_BYTES = 2 << 20
# Seconds for a client to send a body.
BODY_TIMEOUT = 30.0
# No key is needed here, nor is there a limit of the rate: for probes, and for the page, which asks for a key itself.
PROBES = {"/health", "/ready"}
OPEN_PATHS = {*PROBES, "/favicon.ico", *(f"/{path}" for path in page_files())}
WITHOUT_LIMIT = {*OPEN_PATHS, "/metrics"}
# The page asks for its list of models by itself, so it is not a request of the user's.
WITHOUT_RATE = "/chat/models"
# Of the requests that are answered at once, one client may have so many, so that some are left for others.
SHARE = 0.75
# In the metrics, the status of requests whose client left before a response began, as nginx counts them.
CLIENT_LEFT = 499
SECURITY_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cache-control": b"no-store",
}


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


class Gate:
    """An ASGI middleware that refuses requests beyond the limits, reads bodies, counts, and adds security headers.

    No exception passes it: the client gets status 500, and the log one line.
    """

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics, rate_limit: RateLimit) -> None:
        self._app, self._limits, self._metrics, self._rate_limit = app, limits, metrics, rate_limit
        self._keys = Keys(limits.keys)
        self._active = 0
        self._active_of: Counter[str] = Counter()  # by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0
        request = _Request(scope, receive)

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                there = {name.lower() for name, _ in headers}
                headers += [(name, value) for name, value in SECURITY_HEADERS.items() if name not in there]
                if request.has_unread_body and b"connection" not in there:
                    headers.append((b"connection", b"close"))
            await send(message)

        limited = scope["path"] not in WITHOUT_LIMIT
        self._active += limited
        self._metrics.active.set(self._active)
        try:
            try:
                await self._answer(request, send_and_note)
            except ApiError as error:
                if not status:
                    await error.response()(scope, receive, send_and_note)
            except ClientLeftError:
                status = status or CLIENT_LEFT
            except Exception as error:
                log.error("%s %s: %s: %s", scope["method"], scope["path"], type(error).__name__, error)
                if not status:
                    await ApiError(500, "The server failed; its log says why").response()(scope, receive, send_and_note)
            if drained := scope.get("extensions", {}).get(DRAINED):
                await drained()  # what a slow client has not read is held, and counts
        finally:
            self._active -= limited
            self._metrics.active.set(self._active)
            self._active_of[request.counted_for] -= 1
            if self._active_of[request.counted_for] <= 0:
                del self._active_of[request.counted_for]
            route = getattr(scope.get("route"), "path", None) or route_of(scope)
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - begin)

    async def _answer(self, request: "_Request", send: Send) -> None:
        scope, path, headers = request.scope, request.scope["path"], request.headers
        # No route reads these; FastAPI would parse them, which may take long.
        scope["query_string"] = b""
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
        if path not in PROBES:
            check_host(headers.get("host", ""), self._limits.hosts)
        address = address_of(scope)
        if path in OPEN_PATHS:
            client = f"address {address}"
        else:
            client = self._keys.client(headers.get("authorization", ""), address)
        scope.setdefault("state", {})["client"] = client
        if path not in WITHOUT_LIMIT:
            if path != WITHOUT_RATE and (wait := self._rate_limit.wait(client)):
                raise too_many("requests", wait)
            most = self._limits.requests
            if self._active > most or self._active_of[client] >= math.ceil(SHARE * most):
                raise busy("Too many requests at once; try again in a second")
            request.counted_for = client
            self._active_of[client] += 1
        await self._app(scope, await self._receive(request), send)

    async def _receive(self, request: "_Request") -> Receive:
        """Return the function by which the app gets the body: it is read, unless the app will not need it.

        Raises ApiError for one that is too large, too slow, or not JSON, and for one that no route needs.
        """
        body = b""
        if request.has_unread_body and takes_body(request.scope):
            if not is_json(request.headers.get("content-type", "")):
                raise ApiError(415, "The body must be JSON, with Content-Type: application/json")
            body = await request.body(self._limits.most_bytes, self._limits.body_timeout)
        elif request.has_unread_body and request.scope["method"] in {"GET", "HEAD"}:
            raise ApiError(400, f"{request.scope['method']} takes no body here", code="body_not_allowed")
        elif not request.has_unread_body:
            await request.receive()  # an empty body
        is_first = True

        async def receive() -> Message:
            nonlocal is_first
            if is_first:
                is_first = False
                return {"type": "http.request", "body": body, "more_body": False}
            return await request.receive()

        return receive


class _Request:
    """A request at the gate. counted_for: the client among whose active requests it is counted; "": none."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope, self.receive, self.headers = scope, receive, Headers(scope=scope)
        self.counted_for = ""
        self.has_unread_body = (
            self.headers.get("content-length", "0").strip("0") != "" or "transfer-encoding" in self.headers
        )

    async def body(self, most: int, seconds: float) -> bytes:
        """Return the body. Raises ApiError for one of more than `most` bytes, or that takes longer than `seconds`."""
        length = self.headers.get("content-length", "0")
        try:
            if length.isdecimal() and int(length[:20]) > most:
                raise LargeBodyError
            body = await read_body(self.receive, most, seconds)
        except LargeBodyError:
            raise ApiError(413, f"The body has more than {most:,} bytes", code="body_too_large") from None
        except asyncio.TimeoutError:
            raise ApiError(408, "The body was not received in time") from None
        self.has_unread_body = False
        return body


def takes_body(scope: Scope) -> bool:
    """Return whether a route of the app reads the body of a request."""
    return scope["method"] == "POST" and any(
        getattr(route, "path", None) == scope["path"] and "POST" in (getattr(route, "methods", None) or ())
        for route in scope["app"].routes
    )


def address_of(scope: Scope) -> str:
    """Return the address of a client; of IPv6, that of its network, in which a client chooses its address."""
    host: str = scope["client"][0] if scope.get("client") else ""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def route_of(scope: Scope) -> str:
    """Return the route of a request that was refused before it had one; "other" for an unknown path."""
    paths = (getattr(route, "path", None) for route in scope["app"].routes)
    return scope["path"] if scope["path"] in paths else "other"


def check_host(host: str, allowed: Collection[str] | None) -> None:
    """Raise ApiError (403) for a Host header with another name than those allowed.

    A web page elsewhere may have its own name resolve to this server's address (DNS rebinding); its browser sends that
    name. It cannot do so with an address, which is always allowed.
    """
    if allowed is None:
        return
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.removeprefix("[").removesuffix("]").lower().removesuffix(".")
    if name not in allowed and not is_address(name):
        names = ", ".join(sorted(allowed))
        raise ApiError(403, f"The Host header must name one of {names}", code="host_not_allowed")


def is_address(host: str) -> bool:
    """Return whether a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_json(content_type: str) -> bool:
    """Return whether a content type is JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
