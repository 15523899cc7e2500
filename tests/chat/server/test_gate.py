"""Access to the server: hosts, keys, rates and concurrency."""

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from chatbot.chat.loading import LoadedModel
from chatbot.chat.server import completions as module
from chatbot.chat.server.app import create_app
from chatbot.chat.server.completions import EventStream
from chatbot.chat.server.connection import DRAINED
from chatbot.chat.server.errors import CLIENT_LEFT
from chatbot.chat.server.gate import Gate, client_address, read_keys
from chatbot.chat.server.state import Limits
from chatbot.errors import UserError
from tests.chat.server.fake_models import FakeEngine, fake_models, nothing, served
from tests.chat.server.running import status_of

CHAT = "/v1/chat/completions"
HELLO: Any = {"messages": [{"role": "user", "content": "你好"}]}
REPLIED: Any = {"model": "a", "question": "你好", "reply": "好"}


def client_of(folder: Path, engine: FakeEngine | None = None, limits: Limits = Limits(), **settings: Any) -> TestClient:  # noqa: B008
    """Return a client of an app in this process, without an event loop between requests."""
    return TestClient(create_app(fake_models({"a": engine or FakeEngine()}, folder), limits, **settings))


def error_of(response: Any, status: int) -> dict[str, Any]:
    """Check the status and the form of an error response, and return the error."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert ("retry-after" in response.headers) == (status == 429)
    return error


def with_key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_host(tmp_path: Path) -> None:
    """DNS rebinding fails."""
    with client_of(tmp_path, limits=Limits(hosts={"localhost", "127.0.0.1", "::1"})) as client:
        for host in ("LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[::1]", "10.0.0.1"):
            assert client.get("/v1/models", headers={"Host": host}).status_code == 200
        for host in ("evil.example:8000", "", "localhost.evil.example", "127.0.0.1.x"):
            error = error_of(client.get("/v1/models", headers={"Host": host}), 403)
            assert error["message"].endswith("one of 127.0.0.1, ::1, localhost")
            assert error["code"] == "host_not_allowed"
            assert client.get("/health", headers={"Host": host}).status_code == 200  # a probe names any


def test_rate_of_each_client(tmp_path: Path) -> None:
    limits = Limits(keys=(b"one", b"two"), rate=2)
    with client_of(tmp_path, limits=limits) as client:
        for key, statuses in {"one": [200, 200, 429, 429], "two": [200]}.items():
            headers = with_key(key)
            found = [client.post(CHAT, json=HELLO, headers=headers) for _ in statuses]
            assert [response.status_code for response in found] == statuses
            if statuses[-1] == 429:
                error, wait = error_of(found[-1], 429), found[-1].headers["retry-after"]
                assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
                assert client.get("/chat/models", headers=headers).status_code == 200  # asked by the page itself
                assert int(wait) in range(2, 61)
                assert error["message"].endswith(f"wait {wait} seconds")
        assert {client.get(path).status_code for path in ("/health", "/health", "/health")} == {200}


def test_failure_of_the_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(answer=lambda question: [RuntimeError("a secret")])
    with client_of(tmp_path, engine) as client:
        error = error_of(client.post(CHAT, json=HELLO), 500)
        assert error["type"] == "server_error"
        assert "secret" not in error["message"]
        assert "a secret" in caplog.text
        assert "Traceback" not in caplog.text
        engine.answer = lambda question: [UserError("--ban: these words exclude every possible reply")]
        assert "--ban" in error_of(client.post(CHAT, json=HELLO), 400)["message"]


def test_headers_of_all_answers_and_of_pages_of_other_origins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asks = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    with client_of(tmp_path) as client:
        for response in (client.get("/health"), client.get("/nothing"), client.post(CHAT, json={**HELLO, "stream": 1})):
            assert response.headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert "access-control-allow-origin" not in response.headers
            assert "server" not in response.headers
        assert client.options(CHAT, headers=asks).status_code == 405
        assert [client.get(path).status_code for path in ("/docs", "/redoc")] == [404, 404]  # need scripts of others
    assert not caplog.records  # there is no log of requests
    with client_of(tmp_path, limits=Limits(keys=(b"one",)), cors_origins=["https://a.example"]) as client:
        allowed = client.options(CHAT, headers={**asks, "Access-Control-Request-Headers": "authorization"})
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        assert allowed.status_code == 200
        assert client.options(CHAT, headers={**asks, "Origin": "https://b.example"}).status_code == 400


def test_metrics(tmp_path: Path) -> None:
    with client_of(tmp_path) as client:
        client.post(CHAT, json={**HELLO, "n": 2})
        client.get("/nothing")
        client.post(CHAT, content=b"{}", headers={"Content-Type": "text/plain"})
        text = client.get("/metrics").text
    for line in (
        'chatbot_requests_total{route="/v1/chat/completions",status="200"} 1.0',
        'chatbot_requests_total{route="other",status="404"} 1.0',
        'chatbot_requests_total{route="/v1/chat/completions",status="415"} 1.0',
        'chatbot_request_seconds_count{route="/v1/chat/completions"} 2.0',
        'chatbot_replies_total{model="a"} 2.0',
        'chatbot_tokens_total{kind="question",model="a"} 2.0',
        "chatbot_waiting_questions 0.0",
        "chatbot_active_requests 0.0",
    ):
        assert f"{line}\n" in text


def test_stream_whose_sending_ends_closes_its_generator() -> None:
    closed: list[bool] = []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            yield b"1"
            yield b"2"
        finally:
            closed.append(True)

    async def send(message: Any) -> None:
        if message.get("body"):
            raise asyncio.CancelledError

    async def test() -> None:
        generator = events()
        with contextlib.suppress(asyncio.CancelledError):
            await EventStream(generator)({"type": "http"}, None, send)  # type: ignore[arg-type]
        assert closed == [True]

    asyncio.run(test())


def test_readiness(tmp_path: Path) -> None:
    engine = FakeEngine()
    with client_of(tmp_path, engine) as client:
        assert error_of(client.get("/ready"), 503)["message"] == "No model is loaded yet"
        client.post(CHAT, json=HELLO)
        assert client.get("/ready").status_code == 200
        assert [client.head(path).status_code for path in ("/", "/health", "/ready")] == [200] * 3
        client.app.state.server.stopping = True
        assert error_of(client.get("/ready"), 503)["message"] == "The server is stopping"
        assert not engine.closed.is_set()
    assert engine.closed.is_set()


def test_unread_response_counts_as_active(tmp_path: Path) -> None:
    """A request is active until its last byte has left the process."""
    app = create_app(fake_models({"a": FakeEngine()}, tmp_path))

    async def active_before_and_after() -> list[str]:
        read, answered = asyncio.Event(), asyncio.Event()

        async def unread(scope: Any, receive: Any, send: Any) -> None:
            async def drained() -> None:
                answered.set()
                await read.wait()

            scope["extensions"] = {DRAINED: drained} if scope["path"] == CHAT else {}
            await app(scope, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(unread), base_url="http://localhost") as client:

            async def active() -> str:
                return (await client.get("/metrics")).text.split("\nchatbot_active_requests ")[1].split()[0]

            asked = asyncio.create_task(client.post(CHAT, json=HELLO))
            await answered.wait()
            counted = [await active()]
            read.set()
            await asked
            return [*counted, await active()]

    assert asyncio.run(active_before_and_after()) == ["1.0", "0.0"]


def test_rate_counts_replies(tmp_path: Path) -> None:
    with client_of(tmp_path, limits=Limits(rate=40)) as client:
        assert client.post(CHAT, json={**HELLO, "n": 32}).status_code == 200
        error = error_of(client.post("/v1/completions", json={"prompt": ["a"] * 20, "n": 32}), 400)
        assert error["message"] == "n: 640 replies exceed the limit of 40 replies per minute"
        response = client.post("/v1/completions", json={"prompt": ["a"] * 4, "n": 2})
        assert error_of(response, 429)["message"].startswith("Too many replies per minute; wait ")
        assert response.headers["retry-after"] in ("2", "3")
        assert client.post("/v1/completions", json={"prompt": ["a"] * 3, "n": 2}).status_code == 200
        assert client.post(CHAT, json=HELLO).status_code == 429


def test_one_client_cannot_use_all_slots(tmp_path: Path) -> None:
    """Several clients share all slots, and a finished request frees its slot."""
    engine = FakeEngine(nothing)
    app = create_app(fake_models({"a": engine}, tmp_path), Limits(requests=4), request_timeout=0.2)

    async def together() -> list[httpx.Response]:
        def asked(address: str, number: int) -> list[Any]:
            transport = httpx.ASGITransport(app, client=(address, 1))
            client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
            return [*(client.post(CHAT, json=HELLO) for _ in range(number)), client.get("/health")]

        return await asyncio.gather(*asked("192.0.2.1", 4), *asked("192.0.2.2", 2))

    async def twice() -> list[list[httpx.Response]]:
        return [await together(), await together()]

    for found in asyncio.run(twice()):
        assert [response.status_code for response in found] == [504, 504, 504, 429, 200, 504, 429, 200]
        assert found[3].headers["retry-after"] == "1"
        assert error_of(found[3], 429)["code"] == "busy"
        assert error_of(found[0], 504)["code"] == "timeout"
    assert all(request.cancelled.is_set() for request in engine.requests)
    (gate,) = [layer for layer in layers_of(app) if isinstance(layer, Gate)]
    assert not gate._active  # clients that ask no more are forgotten


@pytest.mark.parametrize(("path", "body"), [(CHAT, HELLO), ("/chat/attention", REPLIED)], ids=["chat", "attention"])
@pytest.mark.parametrize(("leaves", "status"), [(False, 504), (True, 0)], ids=["late", "client leaves"])
def test_slot_is_freed_on_timeout_or_disconnect_while_a_model_loads(
    tmp_path: Path, path: str, body: Any, leaves: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is still loaded for the next request. The replies get the rest of the time limit."""
    begun, goes_on, left, original = threading.Event(), threading.Event(), list[float](), module.stream_replies
    content = json.dumps(body).encode()

    def stream_replies(submit: Any, questions: Any, seconds: float, receive: Any) -> Any:
        left.append(seconds)
        return original(submit, questions, seconds, receive)

    monkeypatch.setattr(module, "stream_replies", stream_replies)

    def open_model(directory: Path) -> LoadedModel:
        begun.set()
        goes_on.wait(60)
        return served(FakeEngine())

    models = fake_models({"a": None}, tmp_path, open_model=open_model)
    app = create_app(models, request_timeout=60 if leaves else 0.1)

    async def twice() -> list[int]:
        first = await status_of(app, "POST", path, content, leaves=begun if leaves else None)
        (gate,) = [layer for layer in layers_of(app) if isinstance(layer, Gate)]
        assert not gate._active
        goes_on.set()
        await asyncio.gather(*models._loading.values())
        app.state.server.request_timeout = 60
        return [first, await status_of(app, "POST", path, content)]

    assert asyncio.run(twice()) == [status, 200]
    assert f'status="{status or CLIENT_LEFT}"' in app.state.server.metrics.text().decode()
    assert all(0 < seconds < 60 for seconds in left)


def layers_of(app: Any) -> Iterator[Any]:
    """Yield the middlewares of an app."""
    layer = app.middleware_stack
    while layer is not None:
        yield layer
        layer = getattr(layer, "_app", getattr(layer, "app", None))


def test_clients_are_named_by_their_key_or_network(tmp_path: Path) -> None:
    """A client can choose its address in an IPv6 network."""
    assert client_address({"client": None}) == ""
    for address, network in {
        "192.0.2.1": "192.0.2.1",
        "2001:db8:1:2:3::4": "2001:db8:1:2::/64",
        "::ffff:192.0.2.1": "192.0.2.1",
        "fe80::1%eth0": "fe80::/64",
        "a:b": "a:b",
    }.items():
        assert client_address({"client": (address, 1)}) == network
    with client_of(tmp_path, engine := FakeEngine(), Limits(keys=(b"one",))) as client:
        client.post(CHAT, json=HELLO, headers=with_key("one"))
    assert engine.questions[0].client.startswith("key ")
    assert "one" not in engine.questions[0].client


def test_keys(tmp_path: Path) -> None:
    with client_of(tmp_path, limits=Limits(keys=(b"one", b"two"))) as client:
        for header, message in {
            **dict.fromkeys(
                ("", "Bearer", "Bearer ", "one", "Basic one"), "An API key is required; send the header Authorization"
            ),
            **dict.fromkeys(("Bearer three", "Bearer one two", "Bearer \u00e9"), "The API key is not valid"),
        }.items():
            headers = {"Authorization": header.encode("latin-1")}
            response = client.post(CHAT, json=HELLO, headers=headers)
            error = error_of(response, 401)
            assert (error["code"], error["message"].split(":")[0]) == ("invalid_api_key", message)
            assert response.headers["www-authenticate"] == "Bearer"
        for key in ("one", "two"):
            assert client.post(CHAT, json=HELLO, headers={"Authorization": f"bearer {key}"}).status_code == 200
        for path in ("/v1/models", "/metrics", "/openapi.json", "/other"):
            assert client.get(path).status_code == 401
        assert client.get("/health").status_code == 200


def test_file_of_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"0123456789abcdef\r\n\n  two \n")
    assert read_keys(path) == [b"0123456789abcdef", b"two"]
    (warning,) = capsys.readouterr().err.splitlines()
    assert "key 2 has only 3 characters and could be guessed" in warning
    path.write_bytes(b"\n")
    with pytest.raises(UserError, match="no keys"):
        read_keys(path)
    for byte in range(256):
        path.write_bytes(b"a%cb" % byte)
        if 0x21 <= byte <= 0x7E or byte in b"\r\n":
            assert read_keys(path) == (b"a%cb" % byte).splitlines()
        else:
            with pytest.raises(UserError, match="key 1 must contain only ASCII"):
                read_keys(path)
    for name, message in (("missing", "No such file"), ("", "Is a directory; the file must")):
        with pytest.raises(UserError, match=message):
            read_keys(tmp_path / name)


def test_wrong_keys_are_limited_and_never_lock_out_others(tmp_path: Path) -> None:
    """An address that guesses learns nothing more, but a valid key from it still passes."""
    app = create_app(fake_models({"a": FakeEngine()}, tmp_path), Limits(keys=(b"one", b"two")))
    with TestClient(app, client=("192.0.2.1", 1)) as client:
        for _ in range(11):
            error_of(client.get("/v1/models"), 401)
        for number in range(10):
            error_of(client.get("/v1/models", headers=with_key(str(number))), 401)
        response = client.get("/v1/models", headers=with_key("wrong"))
        error = error_of(response, 429)
        assert error["message"] == "Too many wrong keys from this address per minute; wait 6 seconds"
        assert response.headers["retry-after"] == "6"
        for key in ("one", "two"):
            assert client.get("/v1/models", headers=with_key(key)).status_code == 200
        other = TestClient(app, client=("192.0.2.2", 1))
        error_of(other.get("/v1/models", headers=with_key("wrong")), 401)
        assert client.get("/health").status_code == 200


def test_each_request_is_a_line_of_the_access_log_with_its_id(tmp_path: Path) -> None:
    lines: list[str] = []
    asked = {"/health": "a-1", "/ready": "a b", "/x%1b[31m": "x" * 101}
    with client_of(tmp_path, log_access=lines.append) as client:
        answers = [client.get(path, headers={"X-Request-ID": given}) for path, given in asked.items()]
        answers.append(client.get("/health"))
    ids = [response.headers["x-request-id"] for response in answers]
    assert ids[0] == "a-1"
    assert all(re.fullmatch("[0-9a-f]{16}", given) for given in ids[1:])
    assert len(set(ids)) == len(lines) == 4
    for line, given, path in zip(lines, ids, ("/health 200", "/ready 503", "/x?[31m 404", "/health 200"), strict=True):
        pattern = rf"\d{{4}}-\d\d-\d\d [\d:]+ {given} address testclient: GET {re.escape(path)} \d+\.\d{{3}}s"
        assert re.fullmatch(pattern, line)
