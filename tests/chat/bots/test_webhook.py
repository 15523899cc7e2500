"""The webhook: signatures, bad requests, and callbacks."""

import asyncio
import contextlib
import http.client
import itertools
import json
import re
import socketserver
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from chatbot.chat.bots import webhook
from chatbot.chat.bots.conversations import Answer, RefusedError
from chatbot.chat.bots.webhook import (
    LARGEST_BODY,
    SHAPE,
    SIGNATURE,
    TIMESTAMP,
    Verifier,
    signature_of,
    signed_headers,
    webhook_app,
)
from chatbot.errors import UserError

SECRET = b"a secret of the test"
HELLO = b'{"conversation": "a", "text": "hello"}'


async def repeat(conversation: str, text: str) -> str:
    return f"{conversation}: {text}"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the requests is in a folder of each test."""
    monkeypatch.chdir(tmp_path)


def post(
    content: bytes | AsyncIterator[bytes], headers: dict[str, str], answer: Answer = repeat, method: str = "POST"
) -> httpx.Response:
    """The response of a webhook to a request."""
    verifier = Verifier(SECRET, Path(tempfile.mkdtemp(dir="."), "seen"))  # equal ones within a second are accepted
    return asyncio.run(posted(verifier, content, headers, answer, method))


async def posted(
    verifier: Verifier, content: Any, headers: dict[str, str], answer: Answer = repeat, method: str = "POST"
) -> httpx.Response:
    """The response of a webhook with this verifier."""
    transport = httpx.ASGITransport(webhook_app(answer, verifier))
    async with httpx.AsyncClient(transport=transport, base_url="http://webhook") as client:
        return await client.request(method, "/", content=content, headers=headers)


def signed(body: bytes, answer: Answer = repeat) -> httpx.Response:
    return post(body, signed_headers(SECRET, "request", body), answer)


def test_signed_message_is_answered() -> None:
    response = signed('{"conversation": "群 1", "text": "<b>你好", "else": 1}'.encode())
    assert response.status_code == 200
    assert response.json() == {"reply": "webhook/群 1: <b>你好"}
    assert response.headers["content-type"] == "application/json"


def test_signatures_are_the_documented_ones() -> None:
    """The values are of `printf 'request.1700000000.{}' | openssl dgst -sha256 -hmac secret`."""
    assert [signature_of(b"secret", kind, "1700000000", b"{}") for kind in ("request", "callback")] == [
        "bd3138a77563580ef525fb1a949be0b72fcef0ed0d4bd80ee5af91c4d793aaf3",
        "92330679c4f74ecc84c37ae4e37a66d1f11b483dd6f3a467e802a9c658c9902c",
    ]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({SIGNATURE: signature_of(b"another secret", "request", "1000", HELLO)}, "not the signature"),
        ({SIGNATURE: signature_of(SECRET, "request", "1000", HELLO + b" ")}, "not the signature"),
        ({SIGNATURE: signature_of(SECRET, "callback", "1000", HELLO)}, "not the signature"),
        ({TIMESTAMP: "1001"}, "not the signature"),
        ({TIMESTAMP: "one"}, "seconds since 1970"),
        ({TIMESTAMP: "9" * 5000}, "seconds since 1970"),
    ],
)
def test_other_signatures_are_refused(change: dict[str, str], error: str) -> None:
    headers = {TIMESTAMP: "1000", SIGNATURE: signature_of(SECRET, "request", "1000", HELLO)} | change
    verifier = Verifier(SECRET, Path("seen"), clock=lambda: 1000.0)
    assert error in (verifier.refusal(headers[TIMESTAMP], headers[SIGNATURE], HELLO) or "")
    response = post(HELLO, headers)
    assert (response.status_code, list(response.json())) == (401, ["error"])


def test_requests_are_accepted_once_and_within_the_window_also_after_a_restart() -> None:
    now, seen = 1000.0, Path("folder/seen")
    verifiers = itertools.cycle(Verifier(SECRET, seen, clock=lambda: now) for _ in range(2))

    def refusal(timestamp: str) -> str | None:
        signature = signature_of(SECRET, "request", timestamp, HELLO)
        return next(verifiers).refusal(timestamp, signature, HELLO)

    assert [refusal("1000"), refusal("700"), refusal("1300")] == [None] * 3
    for _ in range(2):
        assert "before" in (refusal("1000") or "")
    assert "300 seconds" in (refusal("699") or "")
    assert "300 seconds" in (refusal("1301") or "")
    now = 1301.0
    assert "300 seconds" in (refusal("1000") or "")
    assert "before" in (refusal("1300") or "")
    now = 5000.0
    assert refusal("5000") is None
    with contextlib.closing(sqlite3.connect(seen)) as connection:
        assert connection.execute("SELECT count(*) FROM seen").fetchone() == (1,)


def test_requests_that_cannot_be_remembered_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a file").touch()
    Path("other").write_bytes(b"no database" * 100)
    for path in ("a file/seen", "other", "."):
        with pytest.raises(UserError, match=rf"--seen-file {re.escape(path)}: [^\[].*; give a file in a folder that"):
            Verifier(SECRET, Path(path))
    verifier = Verifier(SECRET, Path("seen"))
    Path("seen").write_bytes(b"no database" * 100)
    response = asyncio.run(posted(verifier, HELLO, signed_headers(SECRET, "request", HELLO)))
    assert response.status_code == 503
    assert capsys.readouterr().err.startswith("error: --seen-file: ")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"text": "a"}',
        b'{"conversation": 5, "text": "a"}',
        b'{"conversation": "", "text": "a"}',
        json.dumps({"conversation": "a" * 201, "text": "a"}).encode(),
        b'{"conversation": "a", "text": null}',
        b'{"conversation": "a", "text": "\\ud83d"}',
    ],
    ids=lambda body: repr(body[:40]),
)
def test_bodies_that_are_no_message_are_refused(body: bytes) -> None:
    response = signed(body)
    assert (response.status_code, response.json()) == (400, {"error": SHAPE})


def test_large_slow_and_other_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(LARGEST_BODY // 1024 + 1):
            yield b" " * 1024

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(0.2)
        yield b"}"

    assert post(chunks(), {}).status_code == 413
    monkeypatch.setattr(webhook, "BODY_SECONDS", 0.01)
    assert post(slow(), {}).status_code == 408
    response = post(b"", {}, method="GET")
    assert (response.status_code, response.json()) == (405, {"error": "Method Not Allowed"})


def test_a_message_that_was_refused_for_now_is_accepted_again_with_its_signature() -> None:
    """What would be refused again for ever is remembered."""
    verifier, headers = Verifier(SECRET, Path("seen")), signed_headers(SECRET, "request", HELLO)
    errors = iter([RefusedError("wait", 429, 7), RefusedError("failed", 500)])

    async def answer(conversation: str, text: str) -> str:
        raise next(errors)

    responses = [asyncio.run(posted(verifier, HELLO, headers, answer)) for _ in range(3)]
    assert [response.status_code for response in responses] == [429, 500, 401]
    assert [response.json()["error"] for response in responses[:2]] == ["wait", "failed"]
    assert [response.headers.get("retry-after") for response in responses] == ["7", None, None]


Received = tuple[http.client.HTTPMessage, bytes]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
FAILED = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
ELSEWHERE = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"


class Callback(socketserver.ThreadingTCPServer):
    """The server of a callback on loopback, which gives these answers, and then OK. received: headers and bodies."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self.received: list[Received] = []
        left = iter(answers)

        class Handler(socketserver.StreamRequestHandler):
            def handle(handler) -> None:  # noqa: N805
                handler.rfile.readline()
                headers = http.client.parse_headers(handler.rfile)
                self.received.append((headers, handler.rfile.read(int(headers["Content-Length"]))))
                handler.wfile.write(next(left, OK))

        super().__init__(("127.0.0.1", 0), Handler)


def by_callback(answer: Answer, *answers: bytes) -> tuple[list[httpx.Response], list[Received]]:
    """The responses to two messages of a webhook whose replies go to a callback, and what that received.

    The webhook is stopped when the responses are there. answers: of the callback's server.
    """

    async def session(url: str) -> list[httpx.Response]:
        app: Any = webhook_app(answer, Verifier(SECRET, Path("seen")), url)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://webhook") as client,
        ):
            bodies = [HELLO, HELLO.replace(b"hello", b"bye")]
            return [await client.post("/", content=b, headers=signed_headers(SECRET, "request", b)) for b in bodies]

    with Callback(answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        responses = asyncio.run(session(f"http://127.0.0.1:{server.server_address[1]}/reply"))
        server.shutdown()
        thread.join()
    return responses, server.received


def test_replies_go_to_the_callback_signed_and_again_after_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(webhook, "CALLBACK_WAITS", (0.01, 0.01))

    async def answer(conversation: str, text: str) -> str:
        if text == "bye":
            raise RefusedError("not now", 503)
        await asyncio.sleep(3)  # after all that is sent for the other
        return "好"

    responses, received = by_callback(answer, FAILED, ELSEWHERE)
    assert [response.status_code for response in responses] == [202, 202]
    messages = [json.loads(body) for _, body in received]
    assert messages == [{"conversation": "a", "error": "not now"}] * 3 + [{"conversation": "a", "reply": "好"}]
    headers, body = received[-1]
    assert headers[SIGNATURE] == signature_of(SECRET, "callback", headers[TIMESTAMP], body)
    assert capsys.readouterr().err.count("error: --callback: HTTP Error ") == 2


def test_a_callback_is_sent_again_whatever_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(webhook, "CALLBACK_WAITS", (0.01, 0.01))
    _, received = by_callback(
        repeat,
        *(b"", b"nonsense\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"),
        *(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", b"", b""),
    )
    assert [json.loads(body)["reply"] for _, body in received].count("webhook/a: hello") == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("error: --callback: ") and len(line) < 250 for line in lines)


def test_callbacks_in_progress_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "MOST_CALLBACKS", 1)

    async def slow(conversation: str, text: str) -> str:
        await asyncio.sleep(0.1)
        return text

    responses, _ = by_callback(slow)
    assert [response.status_code for response in responses] == [202, 503]
    assert responses[1].headers["retry-after"] == "5"
