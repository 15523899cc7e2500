"""Connections on the loopback, and what no good client sends: sizes, times, unread answers, and those who leave."""

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
from chatbot.chat.server.connection import LARGEST_HEAD, Connection, server_config
from chatbot.chat.server.state import Limits
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
    """A server of `app` on each event loop."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    with running(app, loop=request.param, limit_concurrency=40) as url:
        yield url


def sent(url: str, *parts: bytes) -> bytes:
    """What a server answers to bytes, until it closes the connection, which may be before it has read them all."""
    with connection(url) as client:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                client.sendall(part)
        return received(client)


def asked(client: socket.socket) -> bytes:
    """The answer to a request on a connection that stays open."""
    client.sendall(GET + b"\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\n0") and (part := client.recv(1 << 16)):
        answer += part
    return answer


ENDLESS = [b"x" * 100_000] * 50
HEADS = {
    "one header": (GET + b"X: " + b"x" * LARGEST_HEAD + b"\r\n\r\n",),
    "headers": (GET + b"X: x\r\n" * 300 + b"\r\n",),
    "line": (b"GET /" + b"x" * LARGEST_HEAD + b" HTTP/1.1\r\n\r\n",),
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
    """Also after a large body, and in small parts."""
    body = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n" + b"x" * 500_000
    head = GET + b"X: " + b"x" * (LARGEST_HEAD - 100) + b"\r\nConnection: close\r\n\r\n"
    answer = sent(url, body + head[:30_000], *[head[begin : begin + 3000] for begin in range(30_000, len(head), 3000)])
    assert b"\r\n\r\n500000HTTP/1.1 200 OK\r\n" in answer
    assert answer.endswith(b"\r\n\r\n0")


@pytest.mark.parametrize(("before", "piece"), [(b"", b"x"), (GET + b"\r\n", b"X: x\r\n"), (GET + b"\r\n", b"\r\n")])
def test_slow_heads_end_in_time(url: str, before: bytes, piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte in time does not suffice; nor do empty lines before the next request."""
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


def test_connection_without_requests_is_kept_longer_than_by_clients_and_proxies(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one may send a request while the server closes it: httpx keeps it for 5 s, and nginx for 60 s."""
    with connection(url) as client:
        for seconds in (2 * SECONDS, 0):  # longer than a head may take
            assert asked(client).startswith(b"HTTP/1.1 200")
            time.sleep(seconds)
    assert server_config(None, 1.0).timeout_keep_alive == 75


def test_requests_that_are_sent_at_once_are_few_and_those_before_a_wrong_one_are_answered(url: str) -> None:
    answer = sent(url, (GET + b"\r\n") * 10 + GET + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 11
    assert sent(url, (GET + b"\r\n") * 10_000).count(b"HTTP/1.1 200 OK") < 40
    answer = sent(url, (GET + b"\r\n") * 3 + b"\xff" * 100)
    assert (answer.count(b"HTTP/1.1 200 OK"), answer.count(b"HTTP/1.1 ")) == (3, 3)
    assert b"not valid HTTP" in sent(url, CHUNKED + b"x\r\n")


@pytest.mark.parametrize("path", [b"/large", b"/large?close"])
def test_answer_that_is_not_read_is_dropped_in_time(url: str, path: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "unread_timeout", SECONDS)
    closes = b"Connection: close\r\n" if b"close" in path else b""
    with connection(url) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED)
        client.sendall(GET.replace(b"/ ", path + b" ", 1) + closes + b"\r\n")
        time.sleep(SECONDS + 0.5)
        assert len(received(client)) < LARGE


def test_answer_that_is_read_slowly_arrives(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than the limit for an answer that is not read at all. The next request is answered, too."""
    monkeypatch.setattr(Connection, "unread_timeout", limit := 3 * SECONDS)
    with connection(url) as client:
        client.sendall(GET.replace(b"/ ", b"/large ", 1) + b"\r\n")
        left, parts = LARGE - len(client.recv(1 << 17).partition(b"\r\n\r\n")[2]), 0
        while left:
            left, parts = left - len(client.recv(1 << 17)), parts + 1
            time.sleep(limit / 20 if parts < 40 else 0)  # for twice the limit: the sender sees large ones only
        assert asked(client).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_body_that_is_not_read_closes_the_connection(url: str, method: bytes) -> None:
    """The client gets the answer, though it goes on sending; what it sends is bounded in size and in time."""
    head = method + b" /unread HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"
    assert sent(url, head, *[b"x" * 100_000] * 10).endswith(b"\r\n\r\n0")
    assert sent(url, head, *[b"x" * 100_000] * 200).startswith((b"HTTP/1.1 200", b""))


def test_new_connection_takes_the_place_of_the_oldest_idle_one(url: str) -> None:
    """Beyond the limit, where all others are being answered, it is refused."""
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
    """An engine whose replies begin and never end."""
    return FakeEngine(lambda question: [Piece(0, "x")])


# What `Connection` takes from uvicorn without a promise: from the class that it extends, and from objects of it.
NEEDED = {
    HttpToolsProtocol: {
        *(
            "connections",
            "cycle",
            "flow",
            "headers",
            "limit_concurrency",
            "loop",
            "pipeline",
            "scope",
            "transport",
            "url",
        ),
        "_unset_keepalive_if_required",
    },
    RequestResponseCycle: {"disconnected", "message_event", "more_body", "response_complete", "response_started"},
    FlowControl: {"drain"},
}
CALLED = (
    *("connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing", "send_400_response"),
    *("on_message_begin", "on_headers_complete", "on_body", "on_message_complete", "on_response_complete"),
)


def test_uvicorn_has_what_a_connection_needs_of_it() -> None:
    """Only the minor version that was tested is allowed: another one may lack these names, or not call a method."""
    pinned = re.findall('"uvicorn(.*?)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {*pinned} == {f"=={'.'.join(uvicorn.__version__.split('.')[:2])}.*"}
    owners = {"self": HttpToolsProtocol, "self.cycle": RequestResponseCycle, "self.flow": FlowControl}
    used: dict[type, set[str]] = {owner: set() for owner in owners.values()}
    for node in ast.walk(ast.parse(inspect.getsource(Connection))):
        if isinstance(node, ast.Attribute) and (owner := owners.get(ast.unparse(node.value))):
            used[owner].add(node.attr)
    used[HttpToolsProtocol] -= vars(Connection).keys()
    assert used == NEEDED
    for owner, names in NEEDED.items():
        source = inspect.getsource(owner)
        assert [name for name in names if f"self.{name}" not in source and f"def {name}(" not in source] == []
    assert [name for name in CALLED if not hasattr(HttpToolsProtocol, name) or name not in vars(Connection)] == []


@pytest.fixture(scope="module")
def api(endless: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = fake_models({"a": FakeEngine(), "endless": endless}, tmp_path_factory.mktemp("models"))
    with running(create_app(models, Limits(body_timeout=SECONDS))) as url:
        yield url


@pytest.fixture
def works_after(api: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After the test, the server of the API answers, and it has logged nothing."""
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
def test_bodies_that_do_not_end_and_those_that_no_route_needs(
    api: str, parts: tuple[bytes, ...], closes: bool, start: bytes
) -> None:
    """The connection is closed, before the client's patience ends."""
    with connection(api) as client:
        for part in parts:
            client.sendall(part)
        if closes:
            client.shutdown(socket.SHUT_WR)
        assert received(client).startswith(start)


@pytest.mark.usefixtures("works_after")
@pytest.mark.parametrize("stream", [False, True])
def test_question_of_a_client_that_leaves_is_cancelled(api: str, endless: FakeEngine, stream: bool) -> None:
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
