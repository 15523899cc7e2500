"""What every request passes first: who may ask, how often, and how much."""

import asyncio
import dataclasses
import hmac
import logging
import time
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatbot.chat.page.files import page_files
from chatbot.chat.server.answers import ClientLeftError
from chatbot.chat.server.connection import DRAINED
from chatbot.chat.server.metrics import Metrics
from chatbot.chat.server.problems import ApiError, busy
from chatbot.chat.server.rates import Rates
from chatbot.corpus.reading.display import counted

log = logging.getLogger(__name__)
# Bytes of a body: the text of 1,000 turns of 500 Chinese characters.
MOST_BYTES = 2 << 20
# Seconds for a client to send a body.
BODY_TIMEOUT = 30.0
# No key is needed here, nor is there a limit of the rate: for probes, and for the page, which asks for a key itself.
OPEN_PATHS = {"/health", "/ready", "/favicon.ico", *(f"/{path}" for path in page_files())}
WITHOUT_LIMIT = {*OPEN_PATHS, "/metrics"}
# The page asks for its list of models by itself, so it is not a request of the user's.
WITHOUT_RATE = "/chat/models"
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
    rate: requests a minute of one client; 0: any number. requests: most that are answered at once.
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

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._rates = Rates(limits.rate)
        self._active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                there = {name.lower() for name, _ in headers}
                headers += [(name, value) for name, value in SECURITY_HEADERS.items() if name not in there]
            await send(message)

        limited = scope["path"] not in WITHOUT_LIMIT
        self._active += limited
        self._metrics.active.set(self._active)
        try:
            try:
                await self._answer(scope, receive, send_and_note)
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
            route = getattr(scope.get("route"), "path", None) or route_of(scope)
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - begin)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        check_host(headers.get("host", ""), self._limits.hosts)
        path = scope["path"]
        key = None
        if path not in OPEN_PATHS:
            key = check_key(headers.get("authorization", ""), self._limits.keys)
        if path not in WITHOUT_LIMIT:
            address = scope["client"][0] if scope.get("client") else ""
            if path != WITHOUT_RATE and (wait := self._rates.wait(key or address)):
                message = f"Too many requests in a minute; wait {counted(wait, 'second')}"
                raise ApiError(429, message, code="rate_limit_exceeded", retry_after=wait)
            if self._active > self._limits.requests:
                raise busy("Too many requests at once; try again in a second")
        body = await self._body(headers, receive)
        sent = False

        async def receive_again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, receive_again, send)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """Return the body of a request. Raises ApiError for one that is too large, too slow, or not JSON."""
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._limits.most_bytes:
            raise self._too_large()
        try:
            body = await asyncio.wait_for(self._read(receive), self._limits.body_timeout)
        except asyncio.TimeoutError:
            raise ApiError(408, "The body was not received in time", headers={"Connection": "close"}) from None
        if body and not is_json(headers.get("content-type", "")):
            raise ApiError(415, "The body must be JSON, with Content-Type: application/json")
        return body

    async def _read(self, receive: Receive) -> bytes:
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limits.most_bytes:
                raise self._too_large()
            more = message.get("more_body", False)
        return b"".join(parts)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The body has more than {self._limits.most_bytes:,} bytes", code="body_too_large")


def route_of(scope: Scope) -> str:
    """Return the route of a request that was refused before it had one; "other" for an unknown path."""
    paths = (getattr(route, "path", None) for route in scope["app"].routes)
    return scope["path"] if scope["path"] in paths else "other"


def check_host(host: str, allowed: Collection[str] | None) -> None:
    """Raise ApiError (403) for a Host header with another name than those allowed.

    A web page elsewhere may have its own name resolve to 127.0.0.1 (DNS rebinding); its browser sends that name.
    """
    if allowed is None:
        return
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if name.removeprefix("[").removesuffix("]").lower() not in allowed:
        names = ", ".join(sorted(allowed))
        raise ApiError(403, f"The Host header must name one of {names}", code="host_not_allowed")


def check_key(authorization: str, keys: Sequence[bytes]) -> str | None:
    """Return the key of a request, None if none is needed. Raises ApiError (401) without one of the keys.

    All keys are compared, each in constant time.
    """
    if not keys:
        return None
    scheme, _, given = authorization.partition(" ")
    found = [hmac.compare_digest(given.strip().encode(), key) for key in keys]
    is_bearer = scheme.lower() == "bearer"
    if is_bearer and any(found):
        return given.strip()
    if not authorization or (is_bearer and not given.strip()):
        message = "A key is needed: Authorization: Bearer KEY"
    elif is_bearer:
        message = "This key is not valid"
    else:
        message = "The Authorization header must begin with Bearer: Authorization: Bearer KEY"
    raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def is_json(content_type: str) -> bool:
    """Return whether a content type is JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
