"""What every request passes first: who may ask, how often, and how much; and the routes, which say what they need.

A JSON parser holds the interpreter's lock until it is done, so a thread would not help; its work is bounded, and bodies
that have arrived together are read one at a time, with a turn for all other requests in between.
"""

import asyncio
import codecs
import contextlib
import hashlib
import hmac
import ipaddress
import math
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatbot.chat.server.connection import DRAINED
from chatbot.chat.server.errors import CLIENT_LEFT, ERROR_RESPONSES, ApiError, api_error_of, too_many
from chatbot.chat.server.state import INVISIBLE, ServerState, state_of
from chatbot.chat.service import ClientLeftError, RateLimit, ReceiveEvent
from chatbot.errors import UserError

# What a client may call a request, in the log and in the response; characters of a path in the log.
REQUEST_ID = re.compile(r"[!-~]{1,100}")
MOST_PATH = 200
# Of the requests that are answered at once, one client may have so many, so that some are left for others.
SHARE = 0.75
# Wrong keys of an address that are said to be wrong, at once and in each minute after; characters of a key of 64 bits.
WRONG_KEYS = 10
SHORTEST_KEY = 16
SECURITY_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cache-control": b"no-store",
}
# Commas, and beginnings of lists and objects, outside of texts: several for each of 2,000 messages.
MOST_VALUES = 20_000
REMEDY = "curl sends a file by --data-binary @FILE; cmd.exe knows no single quotes"


class Needs(NamedTuple):
    """What a request needs to be answered.

    key: one of the server's keys, where it has any. host: a Host header that the server allows. place: one among the
    requests that are answered at once. rate: something left of the client's rate.
    """

    key: bool = True
    host: bool = True
    place: bool = True
    rate: bool = True


class Route(APIRoute):
    """A route of the API. The JSON of its bodies has a bounded number of values.

    tag: in the description of the API, where it is left out without one. settings: of FastAPI's route.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        method: str = "GET",
        tag: str = "",
        needs: Needs = Needs(),  # noqa: B008  # immutable
        **settings: Any,
    ) -> None:
        described = {"tags": [tag], "include_in_schema": bool(tag), "responses": ERROR_RESPONSES}
        super().__init__(path, endpoint, methods=[method], **{**described, **settings})
        self.needs = needs

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            return await handle(BodyRequest(request.scope, request.receive))

        return handle_bounded


class Gate:
    """An ASGI middleware that refuses requests beyond the limits, counts, and adds security headers.

    No exception passes it: the client gets its status, and the log one line if it is nobody's mistake. routes: a
    path of none of them needs all.
    """

    def __init__(self, app: ASGIApp, state: ServerState, routes: Sequence[Route]) -> None:
        self._app = app
        self._routes = routes
        self._by_path = {route.path: route for route in routes}
        assert all(self._by_path[route.path].needs == route.needs for route in routes), "one path, other needs"
        self._limits = state.limits
        self._metrics = state.metrics
        self._rate_limit = state.rate_limit
        self._keys = Keys(state.limits.keys)
        self._access = state.access
        self._active_of: Counter[str] = Counter()  # by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = 0
        headers = Headers(scope=scope)
        client = f"address {address_of(scope)}"
        request_id = headers.get("x-request-id", "")
        if not REQUEST_ID.fullmatch(request_id):  # `uuid` needs a system call
            request_id = f"{random.getrandbits(64):016x}"

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                there = {name.lower() for name, _ in message.setdefault("headers", [])}
                message["headers"] += [header for header in SECURITY_HEADERS.items() if header[0] not in there]
                message["headers"].append((b"x-request-id", request_id.encode()))
            await send(message)

        with contextlib.ExitStack() as counted:
            try:
                needs = self._needs_of(scope["path"])
                client = self._admitted(scope, headers, needs)
                if needs.place:
                    counted.enter_context(self._counted(client))
                if scope["method"] in {"GET", "HEAD"} and has_body(headers):
                    raise ApiError(400, f"{scope['method']} takes no body here", code="body_not_allowed")
                await self._app(scope, receive, send_and_note)
            except ClientLeftError:
                status = status or CLIENT_LEFT
            except Exception as error:  # each request has an answer; a fault is logged
                response = api_error_of(error, f"{scope['method']} {scope['path']}").response()
                if not status:
                    await response(scope, receive, send_and_note)
            if drained := scope.get("extensions", {}).get(DRAINED):
                await drained()  # what a slow client has not read is held, and counts
        label = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(label, str(status)).inc()
        self._metrics.seconds.labels(label).observe(time.perf_counter() - begin)
        if self._access is not None:
            asked = f"{scope['method']} {INVISIBLE.sub('?', scope['path'][:MOST_PATH])}"
            took = f"{time.perf_counter() - begin:.3f}s"
            self._access.add(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {request_id} {client}: {asked} {status} {took}")

    def _needs_of(self, path: str) -> Needs:
        route = self._by_path.get(path) or next((one for one in self._routes if one.path_regex.match(path)), None)
        return Needs() if route is None else route.needs

    def _admitted(self, scope: Scope, headers: Headers, needs: Needs) -> str:
        """Return the name of the client, which the app gets, too. Raises ApiError for one that may not ask."""
        # No route reads these; FastAPI would parse them, which may take long.
        scope["query_string"] = b""
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
        address = address_of(scope)
        if needs.host:
            check_host(headers.get("host", ""), self._limits.hosts)
        client = f"address {address}"
        if needs.key:
            client = self._keys.client(headers.get("authorization", ""), address)
        scope.setdefault("state", {})["client"] = client
        if needs.rate and (wait := self._rate_limit.wait(client)):
            raise too_many("requests", wait)
        return client

    @contextlib.contextmanager
    def _counted(self, client: str) -> Iterator[None]:
        """Count a client's active request in the block. Raises ApiError for too many."""
        most = self._limits.requests
        if self._active_of.total() >= most or self._active_of[client] >= math.ceil(SHARE * most):
            raise ApiError(429, "Too many requests at once; try again in a second", code="busy", retry_after=1)
        self._active_of[client] += 1
        self._metrics.active.inc()
        try:
            yield
        finally:
            self._metrics.active.dec()
            self._active_of[client] -= 1
            if not self._active_of[client]:
                del self._active_of[client]


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


def check_host(host: str, allowed: Collection[str] | None) -> None:
    """Raise ApiError (403) for a Host header with another name than those allowed.

    A web page elsewhere may have its own name resolve to this server's address (DNS rebinding); its browser sends that
    name. It cannot do so with an address, which is always allowed.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.removeprefix("[").removesuffix("]").lower().removesuffix(".")
    if allowed is None or name in allowed:
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        names = ", ".join(sorted(allowed))
        raise ApiError(403, f"The Host header must name one of {names}", code="host_not_allowed") from None


class Keys:
    """The keys of a server, which are compared in constant time.

    After many wrong ones from an address, it is not told any more that a key is wrong. A key that is valid always
    passes: others who guess may have the same address, behind a proxy or a router.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys
        self._wrong = RateLimit(WRONG_KEYS)

    def client(self, authorization: str, address: str) -> str:
        """Return a name for who sends an Authorization header: that of a key, or of the address if none is needed.

        Raises ApiError: 401 without one of the keys, and 429 after too many wrong ones from the address.
        """
        if not self._keys:
            return f"address {address}"
        scheme, _, bearer = authorization.partition(" ")
        bearer = bearer.strip()
        if scheme.lower() != "bearer" or not bearer:
            raise _unauthorized("A key is needed: Authorization: Bearer KEY")
        are_equal = [hmac.compare_digest(bearer.encode(), key) for key in self._keys]  # none is left out
        if not any(are_equal):
            if wait := self._wrong.wait(address):
                raise too_many("wrong keys from this address", wait)
            raise _unauthorized("This key is not valid")
        return f"key {hashlib.sha256(bearer.encode()).hexdigest()[:16]}"


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def read_keys(path: Path) -> list[bytes]:
    """Return the keys in a file, one per line; empty lines are ignored.

    Raises UserError for a file that cannot be read, or has no keys, or one that no header can hold.
    """
    try:
        keys = [line.strip() for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"--api-key-file {path}: {error.strerror}; give a file with a key in each line") from None
    if not keys:
        raise UserError(f"--api-key-file {path}: the file has no keys; write one in each line")
    for number, key in enumerate(keys, 1):
        if not all(0x21 <= byte <= 0x7E for byte in key):
            raise UserError(f"--api-key-file {path}: key {number} has other characters than ASCII without spaces")
        if len(key) < SHORTEST_KEY:
            print(
                f"Warning: --api-key-file {path}: key {number} has {len(key)} characters, and may be guessed; "
                "`openssl rand -hex 16` makes one",
                file=sys.stderr,
            )
    return keys


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
