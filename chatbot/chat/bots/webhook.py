"""The adapter for any service: an HTTP endpoint that takes signed messages.

    POST /  {"conversation": "a name", "text": "a message"}  ->  200 {"reply": "..."}

With a callback URL, the request is answered by 202 at once, and the reply is posted there, signed as a callback:

    POST callback  {"conversation": "a name", "reply": "..."}  or  {"conversation": "a name", "error": "..."}
"""

import asyncio
import contextlib
import http.client
import json
import sqlite3
import sys
import urllib.request
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chatbot.chat.bots.conversations import Answer, RefusedError
from chatbot.chat.bots.signature import SIGNATURE, TIMESTAMP, Verifier, signed_headers
from chatbot.chat.service import ClientLeftError, LargeBodyError, read_body
from chatbot.corpus.reading.display import decodable, visible

LARGEST_BODY = 2**16  # bytes
LONGEST_NAME = 200  # characters
BODY_SECONDS = 10.0  # in which a body arrives
# Replies that are computed for the callback at a time.
MOST_CALLBACKS = 256
CALLBACK_SECONDS = 10.0
CALLBACK_WAITS = (1.0, 4.0)  # seconds before a callback that failed is tried again
MOST_SHOWN = 200  # characters of its error


def webhook_app(answer: Answer, verifier: Verifier, callback: str | None = None) -> Starlette:
    """Return the ASGI application. callback: the URL to post replies to; None: they are the responses."""
    tasks: set[asyncio.Task[None]] = set()

    async def receive(request: Request) -> Response:
        body = await _body(request)
        headers = request.headers
        try:
            refusal = await asyncio.to_thread(
                verifier.refusal, headers.get(TIMESTAMP, ""), headers.get(SIGNATURE, ""), body
            )
        except sqlite3.Error as error:
            print(f"error: --seen-file: {error}", file=sys.stderr, flush=True)
            raise HTTPException(503, "the request cannot be remembered; try again later") from error
        if refusal is not None:
            raise HTTPException(401, refusal)
        conversation, text = _message(body)
        if callback is None:
            return JSONResponse({"reply": await answer(f"webhook/{conversation}", text)})
        if len(tasks) >= MOST_CALLBACKS:
            raise RefusedError("Too many replies are being computed; try again soon", 503, 5)
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
        exception_handlers={HTTPException: _refused_request, RefusedError: _refused_message},
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
        message = json.loads(body)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise HTTPException(400, "the body is not valid JSON in UTF-8") from None
    if not isinstance(message, dict):
        raise HTTPException(400, 'the body is not a JSON object; send {"conversation": "a name", "text": "a message"}')
    for name in ("conversation", "text"):
        if name not in message:
            raise HTTPException(400, f'"{name}": required, but missing')
    conversation, text = message["conversation"], message["text"]
    if not isinstance(conversation, str) or not 0 < len(conversation) <= LONGEST_NAME:
        raise HTTPException(400, f'"conversation": expected a text of 1 to {LONGEST_NAME} characters')
    if not isinstance(text, str):
        raise HTTPException(400, '"text": expected a text')
    # JSON may have the half of a character, as "\ud83d".
    return decodable(conversation), decodable(text)


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
    request = urllib.request.Request(url, body, headers, method="POST")
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=CALLBACK_SECONDS):
        pass


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The signature is for one address."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


def _refused_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def _refused_message(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return JSONResponse({"error": str(error)}, error.status, headers)
