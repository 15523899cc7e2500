"""chat.py --serve as a process, with a small model: what users of the server see."""

import asyncio
import builtins
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from chatbot.chat.server.app import create_app
from chatbot.chat.server.connection import server_config
from chatbot.chat.server.run import (
    _named,
    _Server,
    is_loopback,
    memory_limit,
    reload_keys,
    serve,
    url_of,
    warning_of,
)
from chatbot.chat.service import listening_socket
from chatbot.commands import run as run_command
from chatbot.config.chat import CHAT as CHAT_LINE
from chatbot.errors import UserError
from chatbot.inference.questions import Message, Piece, Question, Usage
from tests.chat.server.fake_models import FakeEngine, fake_models
from tests.chat.server.running import running
from tests.commands import ENVIRONMENT, command
from tests.export.untrained import write_attempt
from tests.inference.texts import EMPTY, UNUSUAL

CHAT = "/v1/chat/completions"
TASK = """### Task:
Generate a concise, 3-5 word title with an emoji summarizing the chat history.
### Output:
JSON format: { "title": "your concise title here" }
### Chat History:
<chat_history>
USER: 你好
ASSISTANT: 你好吗
</chat_history>"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The URL of a server of two attempts, and its process, which a test may end."""
    folder = tmp_path_factory.mktemp("server")
    for name, history in {"small": 2, "gpt-5": 0, "private": 0}.items():
        write_attempt(folder / "checkpoints" / name, history=history)
    (folder / "keys").write_text("secret-of-a-test\n")
    flags = ("--serve", "127.0.0.1:0", "--attempt", "small", "--also", "gpt-5", "--api-key-file", "keys")
    process = subprocess.Popen(
        command("chat.py", *flags, "--log-conversations", "--no-ratings"),
        cwd=folder,
        env=ENVIRONMENT,
        text=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("Serving small, chatbot-gpt-5 at http://127.0.0.1:"), process.communicate()
    try:
        yield first.split("; ")[0].split(" at ")[1], process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def client(server: tuple[str, Any]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server[0], headers={"Authorization": "Bearer secret-of-a-test"}, timeout=60) as client:
        yield client


def chat(client: httpx.Client, *texts: str, **fields: Any) -> httpx.Response:
    """The response to a chat of these turns, the first by the user."""
    messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
    body = json.dumps({"messages": messages, **fields}).encode()
    return client.post(CHAT, content=body, headers={"Content-Type": "application/json"})


@pytest.mark.slow
def test_replies_are_those_of_the_model(client: httpx.Client) -> None:
    """As a stream, and as a whole; in the second model, which is loaded at its first use, too."""
    assert client.get("/ready").status_code == 200
    for model in ("small", "chatbot-gpt-5"):
        whole = chat(client, "你", "好", "你好", model=model, seed=1).json()
        events = chat(client, "你", "好", "你好", model=model, seed=1, stream=True).text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        pieces = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-2]]
        text = "".join(piece["delta"].get("content", "") for piece in pieces)
        assert text == whole["choices"][0]["message"]["content"]
        assert whole["system_fingerprint"].endswith("-step-2")


@pytest.mark.slow
def test_who_asks_again_gets_another_reply(client: httpx.Client) -> None:
    def reply(**fields: Any) -> str:
        text: str = chat(client, "吗你", **fields).json()["choices"][0]["message"]["content"]
        return text

    first, second = reply(), reply()
    assert first != second
    assert reply(seed=1) == reply(user={"id": "another"}) == first
    assert reply(min_score=1e9, fallback="？") == "？"
    assert reply(beam_size=2, seed=1) == reply(beam_size=2, seed=1)


@pytest.mark.slow
def test_keys_are_read_again_at_a_signal(
    server: tuple[str, "subprocess.Popen[str]"], client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Those of before stay if the file cannot be used."""
    keys, (_, process) = tmp_path_factory.getbasetemp() / "server0" / "keys", server

    def status(key: str) -> int:
        return client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

    try:
        for content, new in (("", 401), ("another-key-of-a-test\n", 200)):
            keys.write_text(content)
            process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 10
            while (found := status("another-key-of-a-test")) != new and time.monotonic() < deadline:
                time.sleep(0.02)
            assert (found, status("secret-of-a-test")) == (new, 601 - new)
    finally:
        keys.write_text("secret-of-a-test\n")
        process.send_signal(signal.SIGHUP)
        while status("secret-of-a-test") != 200:
            time.sleep(0.02)


def test_keys_that_cannot_be_read_again_leave_the_earlier_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    keys = gate_keys = [b"earlier"]
    for content, expected, line in (
        (None, [b"earlier"], "No such file or directory; give a file with a key in each line; the earlier keys stay"),
        (b"\n", [b"earlier"], "the file has no keys; write one in each line; the earlier keys stay valid"),
        (b"one-new-key-of-16\nanother-new-key-16\n", [b"one-new-key-of-16", b"another-new-key-16"], "key-file: 2 keys"),
        (b"a b\n", [b"one-new-key-of-16", b"another-new-key-16"], "the earlier keys stay valid"),
    ):
        if content is not None:
            path.write_bytes(content)
        caplog.clear()
        reload_keys(path, keys)
        assert gate_keys == expected
        (record,) = caplog.records
        assert line in record.getMessage()
        assert record.levelname == ("WARNING" if "2 keys" in line else "ERROR")


@pytest.mark.slow
def test_an_attempt_that_is_not_named_answers_nobody(client: httpx.Client) -> None:
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["small", "chatbot-gpt-5"]
    assert chat(client, "你好", model="private").status_code == 404
    body = {"model": "private", "question": "你好", "reply": "你好吗"}
    assert client.post("/chat/attention", json=body).status_code == 404


@pytest.mark.slow
def test_ratings_are_collected_by_choice(client: httpx.Client) -> None:
    assert client.get("/chat/models").json()["ratings"] is False
    assert client.post("/chat/ratings", json={}).status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize("question", [*EMPTY, *UNUSUAL], ids=lambda question: ascii(question[:9]))
def test_unusual_questions_get_a_reply(client: httpx.Client, question: str) -> None:
    for fields in ({}, {"temperature": 1, "seed": 1}, {"stream": True}):
        assert chat(client, question, **fields).status_code == 200
    assert client.post("/v1/completions", json={"prompt": "你好"}).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "payload",
    [
        {"stream": True, "stream_options": {"include_usage": True}, "messages": [{"role": "user", "content": "你好"}]},
        {
            "stream": False,
            "messages": [{"role": "user", "content": TASK * 50}],
            "max_completion_tokens": 1000,
            "metadata": {"task": "title_generation", "chat_id": "1", "task_body": {}},
        },
        {
            "stream": True,
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "好"}]},
            ],
            "params": {},
            "tool_ids": None,
            "features": {"web_search": False},
            "variables": {"{{USER_NAME}}": "x"},
            "session_id": "1",
            "chat_id": "2",
            "id": "3",
            "background_tasks": {"title_generation": True, "tags_generation": True, "follow_up_generation": True},
            "temperature": None,
            "top_k": 40,
            "repeat_penalty": 1.1,
            "user": {"name": "x", "id": "1", "email": "x@example.org", "role": "admin"},
        },
    ],
    ids=["chat", "title", "fields"],
)
def test_what_open_webui_sends(client: httpx.Client, payload: dict[str, Any]) -> None:
    response = client.post(CHAT, json={"model": "small", **payload})
    assert response.status_code == 200
    if payload["stream"]:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.text.endswith("data: [DONE]\n\n")
    else:
        assert response.json()["choices"][0]["message"]["content"]


@pytest.mark.slow
def test_ctrl_c_ends_the_server(server: tuple[str, "subprocess.Popen[str]"], client: httpx.Client) -> None:
    """Without a traceback; it printed what was asked for, and said that it read the keys."""
    chat(client, "你好")
    client.get("/nothing")
    process = server[1]
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert all("--api-key-file" in line for line in errors.splitlines())
    assert json.loads(output.splitlines()[-1])["turns"] == ["你好"]


def test_streams_are_finished_when_the_server_stops(tmp_path: Path) -> None:
    may_end, asked = threading.Event(), threading.Event()

    def slow(question: Question) -> Iterator[Message]:
        yield Piece(0, "你")
        asked.set()
        may_end.wait(10)
        yield from (Piece(0, "好"), Piece(0, "", finish_reason="stop"), Usage(1, 1))

    found: list[str] = []
    with running(create_app(fake_models({"a": FakeEngine(slow, has_thread=True)}, tmp_path))) as url:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        thread = threading.Thread(target=lambda: found.append(httpx.post(url + CHAT, json=body, timeout=20).text))
        thread.start()
        asked.wait(10)
        threading.Timer(0.3, may_end.set).start()
    thread.join()
    assert "好" in found[0]
    assert found[0].endswith("data: [DONE]\n\n")


def test_second_signal_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    app = create_app(fake_models({"a": FakeEngine()}, tmp_path))
    server = _Server(server_config(app, 1), app.state.server)
    server.handle_exit(signal.SIGTERM, None)
    assert (server.should_exit, app.state.server.stopping, codes) == (True, True, [])
    server.handle_exit(signal.SIGINT, None)
    assert codes == [130]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--serve", "8000"], "--serve 8000: expected HOST:PORT"),
        (["--serve", "localhost:x"], "--serve localhost:x: expected HOST:PORT"),
        (["--serve", "localhost:70000"], "--serve localhost:70000: expected"),
        (["--api-key-file", "keys"], "--api-key-file: for the server; add --serve"),
        (["--serve", "localhost:0", "--cors-origin", "a.example"], "--cors-origin a.example: give an origin such as"),
        (
            ["--serve", "localhost:0", "--allowed-host", "http://a"],
            "--allowed-host http://a: give a name without scheme",
        ),
        (["--serve", "localhost:0", "--allowed-host", "a:80"], "--allowed-host a:80: give a name without"),
        (["--serve", "localhost:0", "--export", "x"], "x: no such folder; give a folder that"),
        (["--rate-limit", "5"], "--rate-limit: for the server; add --serve"),
        (["--serve", "localhost:0", "--beam-size", "5", "--n-best", "2"], "--n-best and --serve"),
        (["--serve", "localhost:0", "--api-key-file", "missing"], "--api-key-file missing: No such file"),
        (["--serve", "192.0.2.1:80"], "--serve 192.0.2.1:80: .*; give an address of this machine"),
        (
            ["--serve", "192.0.2.1:80", "--port", "81"],
            "--serve 192.0.2.1:81: .*; .* and a free port, such as --port 8001",
        ),
        (["--port", "81"], "--port: for the server; add --serve HOST:PORT"),
        (["--serve", "localhost:0"], "--attempt default: no such attempt"),
        (["--serve", "localhost:0", "--attempt", "x"], "--attempt x: no such attempt"),
    ],
)
def test_mistakes_on_the_command_line(work_dir: Path, flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        serve(CHAT_LINE.parse(flags))


def test_port_in_use(work_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"--serve 127.0.0.1:{port}: .*in use; give .* a free port"):
            serve(CHAT_LINE.parse(["--serve", f"127.0.0.1:{port}"]))


def test_missing_package(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_fastapi(name: str, *arguments: Any) -> Any:
        if name == "chatbot.chat.server.run":
            raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")
        return original(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_fastapi)
    monkeypatch.setattr("sys.argv", ["chat.py", "--serve", "localhost:0"])
    with pytest.raises(UserError, match=r"--serve: No module named 'fastapi'; run `make serve`"):
        run_command("chat")


@pytest.mark.parametrize(
    ("trusted", "client"),
    [((), "127.0.0.1"), (("127.0.0.1",), "192.0.2.9"), (("127.0.0.0/8",), "192.0.2.9"), (("10.0.0.0/8",), "127.0.0.1")],
)
def test_a_client_is_named_by_trusted_proxies_only(trusted: tuple[str, ...], client: str) -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["client"][0])

    config = server_config(app, 5, trusted_proxies=trusted)
    config.load()
    scope = {"type": "http", "client": ("127.0.0.1", 5), "headers": [(b"x-forwarded-for", b"192.0.2.9")]}
    asyncio.run(config.loaded_app(scope, None, None))
    assert seen == [client]


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (("--attempt", "b"), ["b"]),
        (("--attempt", "b", "--also", "a", "b"), ["b", "a"]),
        (("--all-attempts",), []),
        (("--all-attempts", "--also", "c"), ["c"]),
    ],
)
def test_models_of_the_command_line(work_dir: Path, flags: tuple[str, ...], names: list[str]) -> None:
    """There is no attempt of the default name: that is an error, unless all are offered."""
    for name in ("a", "b", "c"):
        (work_dir / "checkpoints" / name).mkdir(parents=True)
        for file in ("config.json", "last"):
            (work_dir / "checkpoints" / name / file).touch()
    settings = CHAT_LINE.parse(["--serve", "127.0.0.1:0", *flags])
    assert [path.name for path in _named(settings)] == names
    for wrong in ((), ("--also", "a"), ("--attempt", "x", "--all-attempts"), ("--attempt", "a", "--also", "x")):
        with pytest.raises(UserError, match="no such attempt"):
            _named(CHAT_LINE.parse(["--serve", "127.0.0.1:0", *wrong]))


def test_addresses() -> None:
    loopback = ("127.0.0.1", "127.1.2.3", "::1", "localhost", "LocalHost")
    assert [is_loopback(host) for host in (*loopback, "0.0.0.0", "10.0.0.1")] == [*[True] * 5, *[False] * 2]
    assert CHAT_LINE.parse(["--serve", "[::1]:80"]).server.address == ("::1", 80)
    with listening_socket("--serve", "127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    with contextlib.suppress(UserError), listening_socket("--serve", "::1", 0) as listener:  # not of every machine
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"
    assert memory_limit(5) == 5_000_000
    assert memory_limit(None) > 10**8
    for allowed, text in (
        ((), "web pages of any site, too, and no key is needed; add"),
        (("a",), "add --api-key-file"),
    ):
        warning = warning_of("0.0.0.0", [], allowed)
        assert warning.startswith("Warning: other machines may reach 0.0.0.0")
        assert text in warning
        assert len(warning) < 200
    assert [warning_of("0.0.0.0", [b"key"], ()), warning_of("127.0.0.1", [], ())] == ["", ""]
