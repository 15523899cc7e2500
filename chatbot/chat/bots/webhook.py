"""The adapter for any service: an HTTP endpoint that takes signed messages; see docs/bots.md.

Signatures are HMAC-SHA256 by a secret that both sides know. What is signed is "request" or "callback", the time and the
body, with a full stop after each of the first two. So the signature of one is never that of the other. The time is in
seconds since 1970, so that a request that was recorded is of no use later.
"""

import asyncio
import contextlib
import hashlib
import hmac
import http.client
import json
import sqlite3
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chatbot.chat.bots.conversations import Answer, RefusedError
from chatbot.chat.service import ClientLeftError, LargeBodyError, read_body
from chatbot.display import visible
from chatbot.errors import UserError

LARGEST_BODY = 2**16  # bytes
LONGEST_NAME = 200  # characters
SHAPE = f'expected {{"conversation": "a name of 1 to {LONGEST_NAME} characters", "text": "a message"}} as JSON in UTF-8'
BODY_SECONDS = 10.0  # in which a body arrives
# Replies that are computed for the callback at a time.
MOST_CALLBACKS = 256
CALLBACK_SECONDS = 10.0
CALLBACK_WAITS = (1.0, 4.0)  # seconds before a callback that failed is tried again
MOST_SHOWN = 200  # characters of its error

TIMESTAMP, SIGNATURE = "X-Chatbot-Timestamp", "X-Chatbot-Signature"
# A request that is older, or as much in the future, is refused.
WINDOW = 300.0

Kind = Literal["request", "callback"]


def signature_of(secret: bytes, kind: Kind, timestamp: str, body: bytes) -> str:
    """Return the signature of a request or a callback."""
    return hmac.new(secret, f"{kind}.{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def signed_headers(secret: bytes, kind: Kind, body: bytes) -> dict[str, str]:
    """Return the headers of a request or a callback with this body that is sent now."""
    timestamp = str(int(time.time()))
    return {TIMESTAMP: timestamp, SIGNATURE: signature_of(secret, kind, timestamp, body)}


class Verifier:
    """Verifies requests, from any thread. Each one is accepted once.

    seen: the file that remembers the requests of the last minutes, so that none is accepted again after a restart. It
    is made with its folder. clock: in seconds since 1970. Raises UserError for a file that cannot be used.
    """

    def __init__(self, secret: bytes, seen: Path, clock: Callable[[], float] = time.time) -> None:
        self.secret = secret
        self._seen, self._clock = seen, clock
        try:
            seen.parent.mkdir(parents=True, exist_ok=True)
            with self._opened() as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS seen (signature PRIMARY KEY, until REAL) WITHOUT ROWID")
                connection.execute("CREATE INDEX IF NOT EXISTS seen_until ON seen (until)")
                connection.execute("DELETE FROM seen WHERE until < ?", [clock()])
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"--seen-file {seen}: {reason}; give a file in a folder that can be written") from error

    def refusal(self, timestamp: str, signature: str, body: bytes) -> str | None:
        """Return why a request is refused, or None for a genuine one. A missing header is empty.

        Raises sqlite3.Error if the request cannot be remembered.
        """
        now = self._clock()
        if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 12:
            return f"{TIMESTAMP}: expected the seconds since 1970"
        expected = signature_of(self.secret, "request", timestamp, body)
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            return f"{SIGNATURE}: not the signature of this timestamp and body"
        if abs(now - int(timestamp)) > WINDOW:
            return f"{TIMESTAMP}: more than {WINDOW:.0f} seconds from now"
        with self._opened() as connection:
            connection.execute("DELETE FROM seen WHERE until < ?", [now])
            added = connection.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", [expected, now + 2 * WINDOW])
            return None if added.rowcount else f"{SIGNATURE}: this request was received before"

    def forget(self, signature: str) -> None:
        """Accept a request again, which got no reply. Raises sqlite3.Error."""
        with self._opened() as connection:
            connection.execute("DELETE FROM seen WHERE signature = ?", [signature])

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file, and commit at the end."""
        with contextlib.closing(sqlite3.connect(self._seen)) as connection, connection:
            yield connection


def webhook_app(answer: Answer, verifier: Verifier, callback: str | None = None) -> Starlette:
    """Return the ASGI application. callback: the URL to post replies to; None: they are the responses."""
    tasks: set[asyncio.Task[None]] = set()

    async def receive(request: Request) -> Response:
        body = await _body(request)
        timestamp, signature = (request.headers.get(name, "") for name in (TIMESTAMP, SIGNATURE))
        try:
            refusal = await asyncio.to_thread(verifier.refusal, timestamp, signature, body)
        except sqlite3.Error as error:
            print(f"error: --seen-file: {error}", file=sys.stderr, flush=True)
            raise HTTPException(503, "the request cannot be remembered; try again later") from error
        if refusal is not None:
            raise HTTPException(401, refusal)
        conversation, text = _message(body)
        try:
            if callback is None:
                return JSONResponse({"reply": await answer(f"webhook/{conversation}", text)})
            if len(tasks) >= MOST_CALLBACKS:
                raise RefusedError("Too many replies are being computed; try again soon", 503, 5)
        except RefusedError as error:
            headers = {}
            if error.retry_after is not None:  # with the same signature, while it is valid
                await asyncio.to_thread(verifier.forget, signature)
                headers = {"Retry-After": str(error.retry_after)}
            raise HTTPException(error.status, str(error), headers) from error
        task = asyncio.create_task(_answer_by_callback(answer, conversation, text, verifier.secret, callback))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return JSONResponse({}, 202)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        yield
        await asyncio.gather(*tasks, return_exceptions=True)

    return Starlette(
        routes=[Route("/", receive, methods=["POST"]), Route("/health", health, methods=["GET"])],
        exception_handlers={HTTPException: _refused},
        lifespan=lifespan,
    )


async def _body(request: Request) -> bytes:
    """Return the body of a request. Raises HTTPException for one that is too large or too slow."""
    try:
        return await read_body(request.receive, LARGEST_BODY, BODY_SECONDS)
    except LargeBodyError:
        raise HTTPException(413, f"at most {LARGEST_BODY} bytes are allowed", {"Connection": "close"}) from None
    except asyncio.TimeoutError:
        raise HTTPException(408, "the body did not arrive in time", {"Connection": "close"}) from None
    except ClientLeftError:
        raise HTTPException(400, "the body is incomplete") from None


def _message(body: bytes) -> tuple[str, str]:
    """Return the conversation and the text of a message. Raises HTTPException if it is none."""
    try:
        message = orjson.loads(body)
        conversation, text = message["conversation"], message["text"]
    except (ValueError, LookupError, TypeError):
        raise HTTPException(400, SHAPE) from None
    if not (isinstance(conversation, str) and isinstance(text, str) and 0 < len(conversation) <= LONGEST_NAME):
        raise HTTPException(400, SHAPE)
    return conversation, text


async def _answer_by_callback(answer: Answer, conversation: str, text: str, secret: bytes, callback: str) -> None:
    try:
        message = {"conversation": conversation, "reply": await answer(f"webhook/{conversation}", text)}
    except RefusedError as error:
        message = {"conversation": conversation, "error": str(error)}
    for wait in (*CALLBACK_WAITS, None):
        try:
            await asyncio.to_thread(_post, callback, message, secret)
            return
        except (OSError, http.client.HTTPException, ValueError) as error:  # of the connection, of HTTP and of its form
            text = visible(str(error)) or type(error).__name__
            print(f"error: --callback: {text[:MOST_SHOWN]}", file=sys.stderr, flush=True)
            if wait is not None:
                await asyncio.sleep(wait)


def _post(url: str, message: dict[str, str], secret: bytes) -> None:
    """Post a message. A response with another status than 2xx is an error, also a redirection.

    Raises OSError, HTTPException of http.client, or ValueError.
    """
    body = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
    headers = {"Content-Type": "application/json", **signed_headers(secret, "callback", body)}
    request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - settings allow only http, https
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=CALLBACK_SECONDS):
        pass


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The signature is for one address."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
