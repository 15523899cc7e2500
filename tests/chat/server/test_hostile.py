"""What no good client sends, to a real server on the loopback: the right status, no traceback, and the next works."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from chatbot.chat.server.app import create_app
from chatbot.chat.server.connection import Connection, server_config
from chatbot.chat.server.state import Limits
from tests.chat.server.fake_models import FakeEngine, fake_models, nothing
from tests.chat.server.running import connection, running

CHAT = "/v1/chat/completions"
HEADERS = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SECONDS = 0.3  # of all time limits of clients


@pytest.fixture(scope="module")
def silent() -> FakeEngine:
    return FakeEngine(nothing)


@pytest.fixture(scope="module")
def url(silent: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = fake_models({"a": FakeEngine(), "silent": silent}, tmp_path_factory.mktemp("models"))
    limits = Limits(body_timeout=SECONDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "header_timeout", SECONDS)
        patch.setattr(Connection, "linger_timeout", SECONDS)
        with running(create_app(models, limits, request_timeout=1.0)) as url, CLIENT:
            yield url


@pytest.fixture(autouse=True)
def works_after(url: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After each test, the server answers, and it has logged nothing."""
    yield
    assert post(url, message("你好")).json()["choices"][0]["message"]["content"] == "你好"
    assert [record for record in caplog.get_records("call") if record.name.startswith("chatbot.")] == []


CLIENT = httpx.Client(timeout=10)


def post(url: str, content: bytes) -> httpx.Response:
    return CLIENT.post(url + CHAT, content=content, headers={"Content-Type": "application/json"})


def message(text: str, **fields: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode()


def exchanged(url: str, *parts: bytes, close: bool = False) -> bytes:
    """All that the server sends after these bytes. close: close this side first."""
    with connection(url) as client:
        for part in parts:
            client.sendall(part)
        if close:
            client.shutdown(socket.SHUT_WR)
        received = b""
        while data := client.recv(65536):
            received += data
    return received


def test_large_body_in_chunks_is_refused_while_it_is_read(url: str) -> None:
    """Its sender announces no size, and never ends."""
    with connection(url) as client:
        client.sendall(HEADERS + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(40):
            client.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("head", [b"Content-Length: 2000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
@pytest.mark.parametrize(
    ("line", "start"),
    [
        *[(f"POST {path}", b"HTTP/1.1 405 ") for path in ("/", "/health", "/ready", "/metrics", "/v1/models")],
        *[(f"GET {path}", b"HTTP/1.1 400 ") for path in ("/", "/health", "/metrics", "/v1/models", CHAT)],
        ("POST /nothing", b"HTTP/1.1 404 "),
        ("PUT /", b"HTTP/1.1 405 "),
        ("OPTIONS /", b"HTTP/1.1 405 "),
        (f"POST {CHAT}", b"HTTP/1.1 415 "),
    ],
)
def test_bodies_that_no_route_needs_are_refused_unread(url: str, line: str, start: bytes, head: bytes) -> None:
    """Before they are sent; the connection is closed soon."""
    begin = time.monotonic()
    answer = exchanged(url, line.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + head)
    assert answer.startswith(start)
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize(
    ("parts", "close", "start"),
    [
        ((b"nonsense\r\n\r\n",), False, b"HTTP/1.1 400 "),
        ((b"\x16\x03\x01\x02\x00",), False, b"HTTP/1.1 400 "),
        ((HEADERS + b"Content-Length: -1\r\n\r\n",), False, b"HTTP/1.1 400 "),
        ((HEADERS + b"Content-Length: 99999999999999999999\r\n\r\n",), False, b"HTTP/1.1 4"),
        ((HEADERS + b"Content-Length: 9999999999\r\n\r\n",), True, b""),
        ((HEADERS,), True, b""),
        ((HEADERS + b"Content-Length: 50\r\n\r\n", b"{"), True, b""),
        ((), True, b""),
        ((b"GET",), False, b""),  # too slow
        ((HEADERS,), False, b""),
        ((HEADERS + b"Content-Length: 50\r\n\r\n", b"{"), False, b"HTTP/1.1 408 "),
    ],
)
def test_connections(url: str, parts: tuple[bytes, ...], close: bool, start: bytes) -> None:
    begin = time.monotonic()
    assert exchanged(url, *parts, close=close).startswith(start)
    assert time.monotonic() - begin < 5


def test_connection_without_requests_is_kept_longer_than_by_clients_and_proxies(tmp_path: Path) -> None:
    """Else one may send a request while the server closes it: httpx keeps it for 5 s, and nginx for 60 s."""
    with (
        running(create_app(fake_models({"a": FakeEngine()}, tmp_path)), timeout_keep_alive=1) as url,
        connection(url) as client,
    ):
        for _ in range(2):
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
            time.sleep(2 * SECONDS)  # longer than a head may take
        begin = time.monotonic()
        assert client.recv(1) == b""
        assert time.monotonic() - begin < 5
    assert server_config(None, 1.0).timeout_keep_alive == 75


def test_many_slow_clients_do_not_disturb_others(url: str) -> None:
    clients = [connection(url) for _ in range(50)]
    for client in clients:
        client.sendall(HEADERS)
    begin = time.monotonic()
    assert post(url, message("x")).status_code == 200
    assert time.monotonic() - begin < 2
    for client in clients:
        assert client.recv(1) == b""  # closed in time
        client.close()


@pytest.mark.parametrize("stream", [False, True])
def test_question_of_a_client_that_leaves_is_cancelled(url: str, silent: FakeEngine, stream: bool) -> None:
    body = message("x", model="silent", stream=stream)
    before = len(silent.requests)
    with connection(url) as client:
        client.sendall(HEADERS + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: len(silent.requests) > before)
    wait_until(lambda: silent.requests[-1].cancelled.is_set())


def test_question_without_reply_ends_in_time(url: str, silent: FakeEngine) -> None:
    response = post(url, message("x", model="silent"))
    assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
    assert silent.requests[-1].cancelled.is_set()


def test_requests_of_many_threads(url: str) -> None:
    """Good and bad ones at once: each gets its own answer."""
    wrong: list[object] = []

    def ask(number: int) -> None:
        with httpx.Client(base_url=url) as client:
            for turn in range(10):
                text = f"{number} {turn}"
                reply = client.post(CHAT, json=json.loads(message(text))).json()
                if reply["choices"][0]["message"]["content"] != text:
                    wrong.append(reply)
                if client.post(CHAT, content=b"{").status_code not in {400, 415}:
                    wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition for at most 5 seconds."""
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
