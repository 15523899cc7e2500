"""Who may ask the server, how often, and how much."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from chatbot.chat.server.app import create_app
from chatbot.chat.server.connection import DRAINED
from chatbot.chat.server.event_stream import EventStream
from chatbot.chat.server.gate import Limits
from chatbot.chat.server.keys import read_keys
from chatbot.chat.server.problems import ApiError
from chatbot.chat.server.rates import Rates
from chatbot.errors import UserError
from tests.chat.server.fake_models import FakeEngine, fake_models

CHAT = "/v1/chat/completions"
HELLO: Any = {"messages": [{"role": "user", "content": "你好"}]}


def client_of(folder: Path, engine: FakeEngine | None = None, limits: Limits = Limits(), **settings: Any) -> TestClient:  # noqa: B008
    """A client of an app in this process. It runs no event loop between requests, so no model is replaced."""
    return TestClient(create_app(fake_models({"a": engine or FakeEngine()}, folder), limits, **settings))


def error_of(response: Any, status: int) -> dict[str, Any]:
    """The error in a response of this status, which has OpenAI's form."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def test_keys(tmp_path: Path) -> None:
    with client_of(tmp_path, limits=Limits(keys=(b"one", b"two"))) as client:
        for header, message in {
            **dict.fromkeys(("", "Bearer", "Bearer "), "A key is needed"),
            **dict.fromkeys(("Bearer three", "Bearer one two", "Bearer \u00e9"), "This key is not valid"),
            **dict.fromkeys(("one", "Basic one"), "The Authorization header must begin with Bearer"),
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


def test_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"one\r\n\n  two \n")
    assert read_keys(path) == [b"one", b"two"]
    for content, message in ((b"\n", "no keys"), ("钥匙".encode(), "key 1 has other characters"), (b"a b", "key 1")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=message):
            read_keys(path)
    for name, message in (("missing", "No such file"), ("", "Is a directory; give a file")):
        with pytest.raises(UserError, match=message):
            read_keys(tmp_path / name)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        *[(host, True) for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[::1]")],
        *[(host, False) for host in ("evil.example", "evil.example:8000", "", "localhost.evil.example", "127.0.0.1.x")],
    ],
)
def test_host(tmp_path: Path, host: str, allowed: bool) -> None:
    """A page whose name was made to resolve to 127.0.0.1 gets nothing."""
    with client_of(tmp_path, limits=Limits(hosts={"localhost", "127.0.0.1", "::1"})) as client:
        response = client.get("/v1/models", headers={"Host": host})
        if allowed:
            assert response.status_code == 200
        else:
            assert error_of(response, 403)["message"].endswith("one of 127.0.0.1, ::1, localhost")


def test_rate_of_each_client(tmp_path: Path) -> None:
    limits = Limits(keys=(b"one", b"two"), rate=2)
    with client_of(tmp_path, limits=limits) as client:
        for key, statuses in {"one": [200, 200, 429, 429], "two": [200]}.items():
            headers = {"Authorization": f"Bearer {key}"}
            found = [client.post(CHAT, json=HELLO, headers=headers) for _ in statuses]
            assert [response.status_code for response in found] == statuses
            if statuses[-1] == 429:
                error, wait = error_of(found[-1], 429), found[-1].headers["retry-after"]
                assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
                assert client.get("/chat/models", headers=headers).status_code == 200  # asked by the page itself
                assert int(wait) in range(2, 61)
                assert error["message"].endswith(f"wait {wait} seconds")
        assert {client.get(path).status_code for path in ("/health", "/health", "/health")} == {200}


def test_rates() -> None:
    now = 0.0
    rates = Rates(2, lambda: now)
    assert [rates.wait("a") for _ in range(3)] == [0, 0, 30]
    now = 29.0
    assert rates.wait("a") == 1
    now = 30.0
    assert [rates.wait("a"), rates.wait("a"), rates.wait("b")] == [0, 30, 0]
    now = 1000.0
    assert [rates.wait("a") for _ in range(3)] == [0, 0, 30]
    for number in range(30_000):
        rates.wait(str(number))
    assert len(rates._left) <= 10_000
    assert Rates(0).wait("a") == 0


def test_most_requests_at_once(tmp_path: Path) -> None:
    engine = FakeEngine(silent=True)
    app = create_app(fake_models({"a": engine}, tmp_path), Limits(requests=1), request_timeout=0.2)

    async def two() -> list[int]:
        import httpx

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            found = await asyncio.gather(*[client.post(CHAT, json=HELLO) for _ in range(2)])
            health = await client.get("/health")
        assert found[1].headers["retry-after"] == "1"
        assert error_of(found[1], 429)["code"] == "busy"
        return [*(response.status_code for response in found), health.status_code]

    assert asyncio.run(two()) == [504, 429, 200]
    assert engine.tickets[0].cancelled.is_set()


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/nothing", {}, 404),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", {}, 404),
        ("GET", CHAT, {}, 405),
        ("POST", "/v1/models", {"json": {}}, 405),
        ("POST", CHAT, {"content": b"x" * 101, "headers": {"Content-Type": "application/json"}}, 413),
        ("POST", CHAT, {"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
        ("POST", CHAT, {"content": b"{}", "headers": {"Content-Type": ""}}, 415),
        ("POST", CHAT, {"content": b"{}", "headers": {"Content-Type": "application/json; charset=utf-8"}}, 400),
        ("POST", CHAT, {"content": b"", "headers": {"Content-Type": "application/json"}}, 400),
        ("POST", CHAT, {"json": {"model": "x", **HELLO}}, 404),
    ],
)
def test_errors_have_openais_form(tmp_path: Path, method: str, path: str, options: dict[str, Any], status: int) -> None:
    with client_of(tmp_path, limits=Limits(most_bytes=100)) as client:
        error_of(client.request(method, path, **options), status)
        assert client.post(CHAT, json=HELLO).status_code == 200


def test_message_names_the_method_that_is_allowed(tmp_path: Path) -> None:
    with client_of(tmp_path) as client:
        assert error_of(client.get(CHAT), 405)["message"] == f"GET is not allowed for {CHAT}; use POST"


def test_failure_of_the_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(answer=lambda question: [RuntimeError("a secret")])
    with client_of(tmp_path, engine) as client:
        error = error_of(client.post(CHAT, json=HELLO), 500)
        assert error["type"] == "server_error"
        assert "secret" not in error["message"]
        assert "a secret" in caplog.text
        assert "Traceback" not in caplog.text
        engine.answer = lambda question: [UserError("--ban: these words leave nothing to reply")]
        assert "--ban" in error_of(client.post(CHAT, json=HELLO), 400)["message"]


def test_headers(tmp_path: Path) -> None:
    with client_of(tmp_path) as client:
        for response in (client.get("/health"), client.get("/nothing"), client.post(CHAT, json={**HELLO, "stream": 1})):
            assert response.headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert "access-control-allow-origin" not in response.headers
            assert "server" not in response.headers


def test_pages_of_other_origins_need_permission(tmp_path: Path) -> None:
    asks = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    with client_of(tmp_path, limits=Limits(keys=(b"one",)), cors_origins=["https://a.example"]) as client:
        assert client.options(CHAT, headers=asks).headers["access-control-allow-origin"] == "https://a.example"
        assert client.options(CHAT, headers={**asks, "Origin": "https://b.example"}).status_code == 400
    with client_of(tmp_path) as client:
        assert client.options(CHAT, headers=asks).status_code == 405


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
        assert error_of(client.get("/ready"), 503)["code"] == "not_ready"
        client.post(CHAT, json=HELLO)
        assert client.get("/ready").status_code == 200
        assert [client.head(path).status_code for path in ("/", "/health", "/ready")] == [200] * 3
        client.app.state.server.stopping = True
        assert error_of(client.get("/ready"), 503)["message"] == "The server stops"
        assert not engine.closed.is_set()
    assert engine.closed.is_set()


def test_conversations_are_logged_only_when_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    for log_conversation in (None, lines.append):
        with client_of(tmp_path, log_conversation=log_conversation) as client:
            client.post(CHAT, json=HELLO)
            list(client.post(CHAT, json={**HELLO, "stream": True}).iter_lines())
    assert len(lines) == 2
    assert '"turns":["你好"],"replies":["你好"]' in lines[1]
    assert "你好" not in caplog.text


def test_memory_is_flat(tmp_path: Path) -> None:
    """What a request leaves behind is collected, whether it is answered or refused."""

    def ask(client: TestClient, requests: int) -> int:
        for number in range(requests):
            assert client.post(CHAT, json={**HELLO, "stream": number % 2 == 0}).status_code == 200
            assert client.post(CHAT, json={"messages": number}).status_code == 400
            assert client.get(f"/nothing/{number}").status_code == 404
        gc.collect()
        return len(gc.get_objects())

    engine = FakeEngine()
    with client_of(tmp_path, engine, Limits(rate=10**6)) as client:
        before = ask(client, 20)
        engine.questions.clear()
        engine.tickets.clear()
        after = ask(client, 40)
    assert after - before < 200  # a test's client leaves an object or two, and the fake engine two a question


def test_body_of_an_error() -> None:
    assert ApiError(418, "x").body() == (
        b'{"error":{"message":"x","type":"invalid_request_error","param":null,"code":null}}'
    )


def test_what_a_client_has_not_read_is_counted(tmp_path: Path) -> None:
    """An active request ends when its last byte has left the process."""
    app = create_app(fake_models({"a": FakeEngine()}, tmp_path))

    async def active_before_and_after() -> list[str]:
        import httpx

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


def test_echoes_and_log_probs_are_bounded(tmp_path: Path) -> None:
    """Else a body of 2 MB had an answer of 64 MB."""
    with client_of(tmp_path) as client:
        for text, n, status in (("x" * 50_000, 2, 200), ("x" * 50_001, 2, 400), (["x" * 4000] * 32, 1, 400)):
            response = client.post("/v1/completions", json={"prompt": text, "n": n, "echo": True})
            assert response.status_code == status
            if status == 400:
                error = error_of(response, 400)
                assert (error["param"], error["code"]) == ("echo", "invalid_value")
                assert "at most 100,000 characters" in error["message"]
        for prompts, top, status in ((32, 0, 200), (1, 20, 200), (2, 20, 400)):
            body = {"prompt": ["x"] * prompts, "n": 32, "logprobs": top}
            response = client.post("/v1/completions", json=body)
            assert response.status_code == status
        message = error_of(response, 400)["message"]
        assert message == "logprobs: with 64 replies, at most 15 others are allowed for each token, not 20"
