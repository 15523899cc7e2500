"""Misbehaving clients: large and slow requests, unread responses, disconnects."""

import ast
import contextlib
import inspect
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from chatbot.chat.server.app import create_app
from chatbot.chat.server.connection import MAX_HEAD_BYTES, Connection, server_config
from chatbot.inference.request import Piece
from tests.chat.server.fake_models import FakeEngine, fake_models
from tests.chat.server.running import connection, received, running
from tests.commands import ROOT

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
LARGE = 8_000_000  # bytes of an answer, more than the buffer of a sender, at most 4 MiB, and of `RECEIVED` hold
RECEIVED = 1 << 18  # bytes of a client's buffer
SECONDS = 0.3  # of the time limit of the head, the body or the answer that a test exceeds; all others are long
LINGER_SECONDS = 1.0  # in which a client has read its refusal
PATIENCE = 240.0


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer with a large body for /large, otherwise with the number of bytes of the request's body."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    size, more = 0, scope["path"] != "/unread"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    body = b"x" * LARGE if scope["path"] == "/large" else str(size).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module", autouse=True)
def _limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("header_timeout", "unread_timeout"):
            patch.setattr(Connection, name, PATIENCE)
        patch.setattr(Connection, "linger_timeout", LINGER_SECONDS)
        yield


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a server of `app` on each event loop."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    with running(app, loop=request.param, limit_concurrency=40) as url:
        yield url


def sent(url: str, *parts: bytes) -> bytes:
    """Send bytes, and return the response until the server closes the connection."""
    with connection(url) as client:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                client.sendall(part)
        return received(client)


def asked(client: socket.socket) -> bytes:
    """Send a request on an open connection, and return the response."""
    client.sendall(GET + b"\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\n0") and (part := client.recv(1 << 16)):
        answer += part
    return answer


ENDLESS = [b"x" * 100_000] * 50
HEADS = {
    "one header": (GET + b"X: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",),
    "headers": (GET + b"X: x\r\n" * 300 + b"\r\n",),
    "line": (b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n",),
    "endless": (GET + b"X: ", *ENDLESS),
    "after a body": (CHUNKED + b"1\r\nx\r\n0\r\nX: ", *ENDLESS),
    "after a request": (GET + b"\r\n", GET + b"X: ", *ENDLESS),
    "extension of a chunk": (CHUNKED + b"1;", *ENDLESS),
}


@pytest.mark.parametrize("parts", HEADS.values(), ids=HEADS)
def test_large_heads_are_refused(url: str, parts: tuple[bytes, ...]) -> None:
    answer = sent(url, *parts)
    assert TOO_LARGE in answer
    assert json.loads(answer.rpartition(b"\r\n")[2])["error"]["code"] == "headers_too_large"


def test_head_within_the_limits_is_answered(url: str) -> None:
    """The headers come after a large body, and in small parts."""
    body = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n" + b"x" * 500_000
    head = GET + b"X: " + b"x" * (MAX_HEAD_BYTES - 100) + b"\r\nConnection: close\r\n\r\n"
    answer = sent(url, body + head[:30_000], *[head[begin : begin + 3000] for begin in range(30_000, len(head), 3000)])
    assert b"\r\n\r\n500000HTTP/1.1 200 OK\r\n" in answer
    assert answer.endswith(b"\r\n\r\n0")


@pytest.mark.parametrize(("before", "piece"), [(b"", b"x"), (GET + b"\r\n", b"X: x\r\n"), (GET + b"\r\n", b"\r\n")])
def test_slow_heads_end_in_time(url: str, before: bytes, piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a byte at a time nor empty lines before the next request extend the limit."""
    monkeypatch.setattr(Connection, "header_timeout", SECONDS)
    end = time.monotonic() + PATIENCE
    with connection(url) as client:
        client.sendall(before + (b"" if piece == b"\r\n" else GET))
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                client.sendall(piece)
                time.sleep(0.02)
        received(client)
    assert time.monotonic() < end


def test_idle_connections_stay_open_longer_than_those_of_clients(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a request can be lost: httpx keeps idle connections for 5 s, nginx for 60 s."""
    with connection(url) as client:
        for seconds in (2 * SECONDS, 0):  # longer than a head may take
            assert asked(client).startswith(b"HTTP/1.1 200")
            time.sleep(seconds)
    assert server_config(None, 1.0).timeout_keep_alive == 75


def test_pipelined_requests(url: str) -> None:
    answer = sent(url, (GET + b"\r\n") * 10 + GET + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 11
    assert sent(url, (GET + b"\r\n") * 10_000).count(b"HTTP/1.1 200 OK") < 40
    answer = sent(url, (GET + b"\r\n") * 3 + b"\xff" * 100)
    assert (answer.count(b"HTTP/1.1 200 OK"), answer.count(b"HTTP/1.1 ")) == (3, 3)
    assert b"not valid HTTP" in sent(url, CHUNKED + b"x\r\n")


@pytest.mark.parametrize("path", [b"/large", b"/large?close"])
def test_unread_response_is_dropped(url: str, path: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "unread_timeout", SECONDS)
    closes = b"Connection: close\r\n" if b"close" in path else b""
    with connection(url) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED)
        client.sendall(GET.replace(b"/ ", path + b" ", 1) + closes + b"\r\n")
        time.sleep(SECONDS + 0.5)
        assert len(received(client)) < LARGE


def test_slowly_read_response_arrives(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than the limit for unread responses. The next request is answered, too."""
    monkeypatch.setattr(Connection, "unread_timeout", limit := 3 * SECONDS)
    with connection(url) as client:
        client.sendall(GET.replace(b"/ ", b"/large ", 1) + b"\r\n")
        left, parts = LARGE - len(client.recv(1 << 17).partition(b"\r\n\r\n")[2]), 0
        while left:
            left, parts = left - len(client.recv(1 << 17)), parts + 1
            time.sleep(limit / 20 if parts < 40 else 0)  # for twice the limit: the sender sees large ones only
        assert asked(client).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_unread_body_closes_the_connection(url: str, method: bytes) -> None:
    """The client gets the response while it sends more, within limits of size and time."""
    head = method + b" /unread HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"
    assert sent(url, head, *[b"x" * 100_000] * 10).endswith(b"\r\n\r\n0")
    assert sent(url, head, *[b"x" * 100_000] * 200).startswith((b"HTTP/1.1 200", b""))


def test_new_connection_replaces_the_longest_idle_one(url: str) -> None:
    """If all other connections are active, it is refused."""
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(connection(url)) for _ in range(60)]
        assert asked(many[-1]).startswith(b"HTTP/1.1 200")
        assert received(many[0]) == b""
    with contextlib.ExitStack() as stack:
        for _ in range(39):
            other = stack.enter_context(connection(url))
            other.sendall(CHUNKED.replace(b"Host", b"Expect: 100-continue\r\nHost"))
            assert other.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert received(stack.enter_context(connection(url))).startswith(b"HTTP/1.1 503 ")


CHAT = "/v1/chat/completions"
POST = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
MEBIBYTES = [b"100000\r\n" + b" " * (1 << 20) + b"\r\n"] * 3


@pytest.fixture(scope="module")
def endless() -> FakeEngine:
    """Return an engine with replies that never end."""
    return FakeEngine(lambda question: [Piece(0, "x")])


def test_uvicorn_has_the_private_names_that_a_connection_uses() -> None:
    """They are not part of its API, so only the tested minor version is allowed."""
    pinned = re.findall('"uvicorn(.*?)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {*pinned} == {f"=={'.'.join(uvicorn.__version__.split('.')[:2])}.*"}
    owners = {"self": HttpToolsProtocol, "self.cycle": RequestResponseCycle, "self.flow": FlowControl}
    for node in ast.walk(ast.parse(inspect.getsource(Connection))):
        if isinstance(node, ast.Attribute) and (owner := owners.get(ast.unparse(node.value))):
            source = inspect.getsource(owner)
            names = f"self.{node.attr}", f"def {node.attr}("
            assert node.attr in vars(Connection) or any(name in source for name in names), node.attr
    called = [
        name for name in vars(Connection) if name.startswith("on_") or name.endswith(("_made", "_lost", "_writing"))
    ]
    assert [name for name in called if not hasattr(HttpToolsProtocol, name)] == []


@pytest.fixture(scope="module")
def api(endless: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = fake_models({"a": FakeEngine(), "endless": endless}, tmp_path_factory.mktemp("models"))
    with pytest.MonkeyPatch.context() as patch, running(create_app(models)) as url:
        patch.setattr("chatbot.chat.server.gate.BODY_TIMEOUT", SECONDS)
        yield url


@pytest.fixture
def works_after(api: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check after the test that the server answers and has logged nothing."""
    yield
    response = httpx.post(api + CHAT, json={"messages": [{"role": "user", "content": "你好"}]}, timeout=PATIENCE)
    assert response.json()["choices"][0]["message"]["content"] == "你好"
    assert [record for record in caplog.get_records("call") if record.name.startswith("chatbot.")] == []


@pytest.mark.usefixtures("works_after")
@pytest.mark.parametrize(
    ("parts", "closes", "start"),
    [
        ((POST, b"Content-Length: -1\r\n\r\n"), False, b"HTTP/1.1 400 "),
        ((POST, b"Content-Length: 99999999999999999999\r\n\r\n"), False, b"HTTP/1.1 4"),
        ((POST, b"Content-Length: 50\r\n\r\n", b"{"), True, b""),
        ((POST, b"Content-Length: 50\r\n\r\n", b"{"), False, b"HTTP/1.1 408 "),
        ((POST, b"Transfer-Encoding: chunked\r\n\r\n", *MEBIBYTES), False, b"HTTP/1.1 413 "),
        # Those that no route needs are refused before they are sent.
        ((POST.replace(b"/json", b"/x"), b"Content-Length: 2000000\r\n\r\n"), False, b"HTTP/1.1 415 "),
        ((GET, b"Content-Length: 2000000\r\n\r\n"), False, b"HTTP/1.1 400 "),
        ((GET, b"Transfer-Encoding: chunked\r\n\r\n"), False, b"HTTP/1.1 400 "),
    ],
    ids=[
        "negative",
        "too many digits",
        "client closes",
        "slow",
        "endless",
        "other type",
        "no route",
        "no route, chunked",
    ],
)
def test_incomplete_and_unexpected_bodies(api: str, parts: tuple[bytes, ...], closes: bool, start: bytes) -> None:
    """The server closes the connection in time."""
    with connection(api) as client:
        for part in parts:
            client.sendall(part)
        if closes:
            client.shutdown(socket.SHUT_WR)
        assert received(client).startswith(start)


@pytest.mark.usefixtures("works_after")
@pytest.mark.parametrize("stream", [False, True])
def test_question_of_a_disconnected_client_is_cancelled(api: str, endless: FakeEngine, stream: bool) -> None:
    asked = {"model": "endless", "stream": stream, "messages": [{"role": "user", "content": "x"}]}
    body, before = json.dumps(asked).encode(), len(endless.requests)
    with connection(api) as client:
        client.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: len(endless.requests) > before)
        assert not stream or client.recv(1 << 16).startswith(b"HTTP/1.1 200")
    wait_until(lambda: endless.requests[-1].cancelled.is_set())


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
