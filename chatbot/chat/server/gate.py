"""Checks every request: its host, API key and body, and whether the client sends too many requests.

Parsing JSON blocks all other requests, even in a separate thread, because the parser holds Python's global interpreter
lock. To keep this time short, the size of bodies is limited, and bodies are parsed one at a time.
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

from chatbot.chat.clients import ClientLeftError, RateLimit, ReceiveEvent
from chatbot.chat.server.connection import DRAINED
from chatbot.chat.server.errors import CLIENT_LEFT, ERROR_RESPONSES, ApiError, rate_limit_error, to_api_error
from chatbot.chat.server.state import INVISIBLE, ServerState, server_state
from chatbot.errors import UserError

# Matches valid X-Request-ID headers.
REQUEST_ID = re.compile(r"[!-~]{1,100}")
# Longer URL paths are truncated in the access log.
MAX_PATH_CHARACTERS = 200
# The maximum fraction of the concurrent requests that can come from a single client.
MAX_CLIENT_FRACTION = 0.75
# The maximum number of wrong API keys from an IP address per minute. Further wrong keys get status 429.
WRONG_KEYS_PER_MINUTE = 10
# Shorter API keys could be guessed. This is the length of a 64-bit key in hexadecimal digits.
MIN_KEY_CHARACTERS = 16
SECURITY_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cache-control": b"no-store",
}
# The maximum size of a request body, in bytes. 1,000 messages of 500 Chinese characters fit.
MAX_BODY_BYTES = 2 << 20
# The timeout for receiving a request body, in seconds.
BODY_TIMEOUT = 30.0
# The maximum number of commas, arrays and objects in a JSON body. A body of 2,000 messages stays below this limit.
MAX_VALUES = 20_000
REMEDY = "send files with curl --data-binary @FILE; cmd.exe does not support single quotes"


class Needs(NamedTuple):
    """The checks that requests for a route must pass.

    Attributes:
        key: Whether requests need a valid API key. Ignored if the server requires no keys.
        host: Whether the Host header must contain an allowed host name.
        slot: Whether requests count toward the limit on concurrent requests.
        rate: Whether requests count toward the client's rate limit.
    """

    key: bool = True
    host: bool = True
    slot: bool = True
    rate: bool = True


class Route(APIRoute):
    """A route of the API. It limits the size of request bodies and the number of JSON values in them.

    Args:
        path: The URL path.
        endpoint: The function that handles requests.
        method: The HTTP method.
        tag: The tag in the OpenAPI description; "" excludes the route from the description.
        needs: The checks that requests must pass.
        **settings: Additional arguments of `APIRoute`.
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
        defaults = {"tags": [tag], "include_in_schema": bool(tag), "responses": ERROR_RESPONSES}
        super().__init__(path, endpoint, methods=[method], **{**defaults, **settings})
        self.needs = needs

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that handles requests."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            return await handle(BodyRequest(request.scope, request.receive))

        return handle_bounded


class Gate:
    """ASGI middleware that enforces limits, records metrics, adds security headers and handles exceptions.

    Every exception is converted to an error response. Unexpected exceptions are logged on one line.

    Args:
        app: The ASGI app.
        state: The state of the server.
        routes: The routes with their checks. Requests for unknown paths must pass all checks.
    """

    def __init__(self, app: ASGIApp, state: ServerState, routes: Sequence[Route]) -> None:
        self._app = app
        self._routes = routes
        self._state = state
        self._wrong_keys = RateLimit(WRONG_KEYS_PER_MINUTE)
        self._active: Counter[str] = Counter()  # Counts the active requests of each client.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0
        headers = Headers(scope=scope)
        address = client_address(scope)
        client = f"address {address}"
        request_id = headers.get("x-request-id", "")
        if not REQUEST_ID.fullmatch(request_id):
            # `random` is faster than `uuid`, which needs a system call.
            request_id = f"{random.getrandbits(64):016x}"

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                names = {name.lower() for name, _ in message.setdefault("headers", [])}
                message["headers"] += [header for header in SECURITY_HEADERS.items() if header[0] not in names]
                message["headers"].append((b"x-request-id", request_id.encode()))
            await send(message)

        with contextlib.ExitStack() as stack:
            try:
                needs = next((route.needs for route in self._routes if route.path_regex.match(scope["path"])), Needs())
                client = self._authorise(scope, headers, address, needs)
                if needs.slot:
                    stack.enter_context(self._track_request(client))
                if scope["method"] in {"GET", "HEAD"} and has_body(headers):
                    raise ApiError(400, f"{scope['method']} requests must not have a body", code="body_not_allowed")
                await self._app(scope, receive, send_with_headers)
            except ClientLeftError:
                status = status or CLIENT_LEFT
            except Exception as error:  # Every error becomes a response.
                response = to_api_error(error, f"{scope['method']} {scope['path']}").response()
                if not status:
                    await response(scope, receive, send_with_headers)
            if drained := scope.get("extensions", {}).get(DRAINED):
                # A request counts as active until its client has read the response, because the response uses memory.
                await drained()
        label = getattr(scope.get("route"), "path", "other")
        self._state.metrics.requests.labels(label, str(status)).inc()
        self._state.metrics.seconds.labels(label).observe(time.perf_counter() - start)
        if self._state.access is not None:
            request = f"{scope['method']} {INVISIBLE.sub('?', scope['path'][:MAX_PATH_CHARACTERS])}"
            duration = f"{time.perf_counter() - start:.3f}s"
            self._state.access.add(
                f"{time.strftime('%Y-%m-%d %H:%M:%S')} {request_id} {client}: {request} {status} {duration}"
            )

    def _authorise(self, scope: Scope, headers: Headers, address: str, needs: Needs) -> str:
        """Check a request and return the name of its client. Raises ApiError if the request is not allowed."""
        # Remove the query string and the cookies. No route uses them, but FastAPI would parse them, which can be slow.
        scope["query_string"] = b""
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
        if needs.host:
            check_host(headers.get("host", ""), self._state.limits.hosts)
        client = f"address {address}"
        if needs.key and self._state.limits.keys:
            client = self._authenticate(headers.get("authorization", ""), address)
        scope.setdefault("state", {})["client"] = client
        if needs.rate and (wait := self._state.rate_limit.wait(client)):
            raise rate_limit_error("requests", wait)
        return client

    def _authenticate(self, authorization: str, address: str) -> str:
        """Check the API key in an Authorization header and return the name of the client.

        Keys are compared in constant time. After too many wrong keys from an address, valid keys are still accepted,
        because several clients can share an address.

        Raises:
            ApiError: With status 401 if the key is missing or wrong, or 429 after too many wrong keys from the address.
        """
        scheme, _, bearer = authorization.partition(" ")
        bearer = bearer.strip()
        if scheme.lower() != "bearer" or not bearer:
            raise _unauthorized_error("An API key is required; send the header Authorization: Bearer KEY")
        matches = [hmac.compare_digest(bearer.encode(), key) for key in self._state.limits.keys]
        if not any(matches):
            if wait := self._wrong_keys.wait(address):
                raise rate_limit_error("wrong keys from this address", wait)
            raise _unauthorized_error("The API key is not valid")
        return f"key {hashlib.sha256(bearer.encode()).hexdigest()[:16]}"

    @contextlib.contextmanager
    def _track_request(self, client: str) -> Iterator[None]:
        """Count a request as active while a `with` block runs. Raises ApiError if too many requests are active."""
        maximum = self._state.limits.requests
        if self._active.total() >= maximum or self._active[client] >= math.ceil(MAX_CLIENT_FRACTION * maximum):
            raise ApiError(429, "Too many concurrent requests; try again in a second", code="busy", retry_after=1)
        self._active[client] += 1
        self._state.metrics.active.inc()
        try:
            yield
        finally:
            self._state.metrics.active.dec()
            self._active[client] -= 1
            if not self._active[client]:
                del self._active[client]


def client_address(scope: Scope) -> str:
    """Return the IP address of a client.

    For IPv6, return its /64 network, because a client can usually use all addresses of this network.
    """
    host: str = scope["client"][0] if scope.get("client") else ""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def check_host(host: str, allowed: Collection[str] | None) -> None:
    """Raise ApiError with status 403 if the Host header does not contain an allowed host name.

    This check prevents DNS rebinding: a malicious web page whose host name resolves to the address of this server. IP
    addresses are always allowed, because the attack requires a host name.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.removeprefix("[").removesuffix("]").lower().removesuffix(".")
    if allowed is None or name in allowed:
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        names = ", ".join(sorted(allowed))
        raise ApiError(403, f"The Host header must be one of {names}", code="host_not_allowed") from None


def _unauthorized_error(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def read_keys(path: Path) -> list[bytes]:
    """Read API keys from a file with one key per line. Blank lines are ignored.

    Raises:
        UserError: If the file cannot be read, contains no keys, or contains a key that is not valid in a header.
    """
    try:
        keys = [line.strip() for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"--api-key-file {path}: {error.strerror}; the file must contain one key per line") from None
    if not keys:
        raise UserError(f"--api-key-file {path}: the file contains no keys; add one key per line")
    for number, key in enumerate(keys, 1):
        if not all(0x21 <= byte <= 0x7E for byte in key):
            raise UserError(f"--api-key-file {path}: key {number} must contain only ASCII characters without spaces")
        if len(key) < MIN_KEY_CHARACTERS:
            print(
                f"Warning: --api-key-file {path}: key {number} has only {len(key)} characters and could be guessed; "
                "create a longer key with `openssl rand -hex 16`",
                file=sys.stderr,
            )
    return keys


class BodyRequest(Request):
    """A request whose body is limited in size, in the time to receive it, and in the number of its JSON values."""

    async def body(self) -> bytes:
        """Return the body. Raises ApiError if the body is too large, incomplete or late, or not declared as JSON."""
        if hasattr(self, "_body"):
            return self._body
        length = self.headers.get("content-length", "0")
        if has_body(self.headers):
            kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
                raise ApiError(415, "The body must be JSON, with Content-Type: application/json")
        if length.isdecimal() and int(length[:20]) > MAX_BODY_BYTES:
            raise _too_large_error()
        try:
            self._body = await asyncio.wait_for(_read_body(self.receive), BODY_TIMEOUT)
        except asyncio.TimeoutError:
            raise ApiError(408, "The body was not received in time") from None
        return self._body

    async def json(self) -> Any:
        """Return the parsed body. Raises ApiError if the body is not JSON in UTF-8 or contains too many values."""
        body = (await self.body()).removeprefix(codecs.BOM_UTF8)
        async with server_state(self).parsing:
            await asyncio.sleep(0)  # Let other requests run before the next body is parsed.
            check_value_count(body)
            try:
                return orjson.loads(body.decode())
            except ValueError as error:
                raise ApiError(400, f"The body is not JSON in UTF-8: {error}; {REMEDY}", code="invalid_json") from None


async def _read_body(receive: ReceiveEvent) -> bytes:
    """Receive a body. Raises ApiError if the body exceeds MAX_BODY_BYTES or the client disconnects."""
    body = bytearray()
    more_body = True
    while more_body:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(CLIENT_LEFT, "The client disconnected")
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_large_error()
        more_body = message.get("more_body", False)
    return bytes(body)


def _too_large_error() -> ApiError:
    return ApiError(413, f"The body has more than {MAX_BODY_BYTES:,} bytes", code="body_too_large")


def has_body(headers: Headers) -> bool:
    """Return whether a request has a body."""
    return headers.get("content-length", "0").strip("0") != "" or "transfer-encoding" in headers


def check_value_count(body: bytes) -> None:
    """Raise ApiError if a body contains too many JSON values. The body may be invalid JSON."""
    if _count_structure(body) <= MAX_VALUES:
        return
    # Count again without strings. After splitting at quotation marks, every second part is a string.
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') > 4 * MAX_VALUES or _count_structure(b"".join(body.split(b'"')[::2])) > MAX_VALUES:
        message = f"The body contains more than {MAX_VALUES:,} values; send fewer messages or fields"
        raise ApiError(400, message, code="too_many_values")


def _count_structure(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")
