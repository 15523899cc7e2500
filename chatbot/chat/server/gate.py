"""What every request passes first: who may ask, how often, and how much."""

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
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatbot.chat.page import page_files
from chatbot.chat.server.bodies import has_body
from chatbot.chat.server.connection import DRAINED
from chatbot.chat.server.errors import CLIENT_LEFT, ApiError, api_error_of, too_many
from chatbot.chat.server.state import INVISIBLE, ServerState
from chatbot.chat.service import ClientLeftError, RateLimit
from chatbot.errors import UserError

# No key is needed here, nor is there a limit of the rate: for probes, and for the page, which asks for a key itself.
PROBES = {"/health", "/ready"}
OPEN_PATHS = {*PROBES, "/favicon.ico", *(f"/{path}" for path in page_files())}
WITHOUT_LIMIT = {*OPEN_PATHS, "/metrics"}
# The page asks for its list of models by itself, so it is not a request of the user's.
WITHOUT_RATE = "/chat/models"
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


class Gate:
    """An ASGI middleware that refuses requests beyond the limits, counts, and adds security headers.

    No exception passes it: the client gets its status, and the log one line if it is nobody's mistake.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
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
                client = self._admitted(scope, headers)
                if scope["path"] not in WITHOUT_LIMIT:
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
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(time.perf_counter() - begin)
        if self._access is not None:
            asked = f"{scope['method']} {INVISIBLE.sub('?', scope['path'][:MOST_PATH])}"
            took = f"{time.perf_counter() - begin:.3f}s"
            self._access.add(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {request_id} {client}: {asked} {status} {took}")

    def _admitted(self, scope: Scope, headers: Headers) -> str:
        """Return the name of the client, which the app gets, too. Raises ApiError for one that may not ask."""
        # No route reads these; FastAPI would parse them, which may take long.
        scope["query_string"] = b""
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
        path = scope["path"]
        address = address_of(scope)
        if path not in PROBES:
            check_host(headers.get("host", ""), self._limits.hosts)
        client = f"address {address}"
        if path not in OPEN_PATHS:
            client = self._keys.client(headers.get("authorization", ""), address)
        scope.setdefault("state", {})["client"] = client
        if path not in WITHOUT_LIMIT and path != WITHOUT_RATE and (wait := self._rate_limit.wait(client)):
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
