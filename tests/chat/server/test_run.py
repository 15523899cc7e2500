"""The server as a process: its start, its errors, and its end."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from chatbot.attempts.files import CONFIG
from chatbot.chat.server import run
from chatbot.chat.server.app import create_app
from chatbot.chat.server.connection import server_config
from chatbot.chat.server.run import (
    _find_directories,
    _Server,
    access_warning,
    is_loopback,
    listening_socket,
    memory_limit,
    reload_keys,
    serve,
    socket_url,
)
from chatbot.chat.start import start
from chatbot.config.chat import CHAT as CHAT_LINE
from chatbot.errors import UserError
from chatbot.inference.request import Message, Piece, Question, Usage
from tests.chat.server.fake_models import FakeEngine, fake_models, point, served
from tests.chat.server.running import run_until_sigterm, running
from tests.commands import ENVIRONMENT, command, python
from tests.export.untrained import write_attempt
from tests.inference.messages import EMPTY, UNUSUAL

CHAT = "/v1/chat/completions"
KEY, OTHER_KEY = "secret-of-a-test", "another-key-of-a-test"
# Of which one is not offered.
ATTEMPTS = {"small": 2, "gpt-5": 0, "private": 0}
FLAGS = ("--attempt", "small", "--also", "gpt-5", "--api-key-file", "keys", "--log-conversations", "--no-ratings")


def chat(client: httpx.Client, *texts: str, **fields: Any) -> httpx.Response:
    """Return the response to a chat with these turns, beginning with the user."""
    messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
    body = json.dumps({"messages": messages, **fields}).encode()
    return client.post(CHAT, content=body, headers={"Content-Type": "application/json"})


@pytest.mark.slow
def test_process_serves_until_ctrl_c(work_dir: Path) -> None:
    """Streams equal whole replies, also of a second model, which is loaded at its first use."""
    for name, history in ATTEMPTS.items():
        write_attempt(work_dir / "checkpoints" / name, history=history)
    (work_dir / "keys").write_text(KEY)
    process = subprocess.Popen(
        command("chat.py", "--serve", "127.0.0.1:0", *FLAGS),
        env=ENVIRONMENT,
        text=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("Serving small, chatbot-gpt-5 at http://127.0.0.1:"), process.communicate()
    url = first.split("; ")[0].split(" at ")[1]
    try:
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=240) as client:
            for model in ("small", "chatbot-gpt-5"):
                whole = chat(client, "你", "好", "你好", model=model, seed=1).json()
                events = chat(client, "你", "好", "你好", model=model, seed=1, stream=True).text.split("\n\n")
                pieces = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-2]]
                text = "".join(piece["delta"].get("content", "") for piece in pieces)
                assert text == whole["choices"][0]["message"]["content"]
                assert whole["system_fingerprint"].endswith("-step-2")
            for question in [*EMPTY, *UNUSUAL, "你好"]:
                assert chat(client, question).status_code == 200
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=240)
        assert (process.returncode, errors) == (0, "")
        assert json.loads(output.splitlines()[-1])["turns"] == ["你好"]
    finally:
        process.kill()
        process.communicate()


def test_models_keys_and_logs_are_those_of_the_command_line(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys are reloaded at a signal. Unnamed attempts are not offered, and no ratings are collected."""
    for name in ATTEMPTS:
        (work_dir / "checkpoints" / name).mkdir(parents=True)
        (work_dir / "checkpoints" / name / CONFIG).touch()
        point(work_dir / "checkpoints" / name, 1)
    Path("keys").write_text(KEY)
    monkeypatch.setattr(run, "open_model", lambda directory, **_: served(FakeEngine(), directory=directory.name))
    monkeypatch.setattr(run, "_configure_logging", lambda: None)  # it changes the logs of all tests

    def status(key: str) -> int:
        return httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=240).status_code

    def session() -> None:
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=240) as client:
            assert client.get("/ready").status_code == 200  # the first model is loaded
            for path in ("/v1/models", "/v1/models/"):
                assert [model["id"] for model in client.get(path).json()["data"]] == ["small", "chatbot-gpt-5"]
            assert client.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403
            assert client.get("/chat/models").json()["ratings"] is False
            assert chat(client, "你好").status_code == 200
            assert chat(client, "你好", model="private").status_code == 404
        Path("keys").write_text(OTHER_KEY)
        os.kill(os.getpid(), signal.SIGHUP)
        while status(KEY) == 200:
            time.sleep(0.01)
        assert status(OTHER_KEY) == 200

    with listening_socket("127.0.0.1", 0) as listener:
        listener.listen()  # the session does not wait for uvicorn
        url = socket_url(listener)
        monkeypatch.setattr(run, "listening_socket", lambda *address: listener)
        settings = CHAT_LINE.parse(["--serve", "127.0.0.1:0", *FLAGS, "--log-access"])
        assert run_until_sigterm(lambda: serve(settings), session) == 0
    printed = capsys.readouterr()
    first, line = printed.out.splitlines()
    assert first == f"Serving small, chatbot-gpt-5 at {url}; press Ctrl-C to stop"
    assert json.loads(line)["turns"] == ["你好"]
    assert printed.err.count(f"POST {CHAT} 200") == 1


def test_failed_reload_keeps_the_old_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    keys = gate_keys = [b"earlier"]
    for content, expected, line in (
        (None, [b"earlier"], "No such file or directory; the file must contain one key per line; the old keys remain"),
        (b"\n", [b"earlier"], "the file contains no keys; add one key per line; the old keys remain valid"),
        (b"one-new-key-of-16\nanother-new-key-16\n", [b"one-new-key-of-16", b"another-new-key-16"], "key-file: 2 keys"),
        (b"a b\n", [b"one-new-key-of-16", b"another-new-key-16"], "the old keys remain valid"),
    ):
        if content is not None:
            path.write_bytes(content)
        caplog.clear()
        reload_keys(path, keys)
        assert gate_keys == expected
        (record,) = caplog.records
        assert line in record.getMessage()
        assert record.levelname == ("WARNING" if "2 keys" in line else "ERROR")


def test_streams_are_finished_when_the_server_stops(tmp_path: Path) -> None:
    may_end, asked = threading.Event(), threading.Event()

    def slow(question: Question) -> Iterator[Message]:
        yield Piece(0, "你")
        asked.set()
        may_end.wait(240)
        yield from (Piece(0, "好"), Piece(0, "", finish_reason="stop"), Usage(1, 1))

    found: list[str] = []
    with running(create_app(fake_models({"a": FakeEngine(slow, has_thread=True)}, tmp_path))) as url:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        thread = threading.Thread(target=lambda: found.append(httpx.post(url + CHAT, json=body, timeout=240).text))
        thread.start()
        asked.wait(240)
        threading.Timer(0.3, may_end.set).start()
    thread.join()
    assert "好" in found[0]
    assert found[0].endswith("data: [DONE]\n\n")


def test_second_signal_stops_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        (["--api-key-file", "keys"], "--api-key-file: only for the server; add --serve"),
        (["--port", "81"], "--port: only for the server; add --serve HOST:PORT"),
        (["--serve", "localhost:0", "--cors-origin", "a.example"], "--cors-origin a.example: give an origin such as"),
        (["--serve", "localhost:0", "--allowed-host", "a:80"], "--allowed-host a:80: give a name without"),
        (["--serve", "localhost:0", "--export", "x"], "x: no such folder; give a folder written"),
        (["--serve", "localhost:0", "--api-key-file", "missing"], "--api-key-file missing: No such file"),
        (
            ["--serve", "192.0.2.1:80", "--port", "81"],
            "--serve 192.0.2.1:81: .*; use an address of this machine and a free port, such as --port 8001",
        ),
        (["--serve", "localhost:0"], "--attempt default: no such attempt"),
        (["--serve", "localhost:0", "--export", "x.zip"], "x.zip: no such file; give a file written by"),
    ],
)
def test_mistakes_on_the_command_line(work_dir: Path, flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        serve(CHAT_LINE.parse(flags))


def test_server_logs_its_own_warnings_with_the_time() -> None:
    code = """
import logging
from chatbot.chat.server.run import _configure_logging
_configure_logging()
logging.getLogger("chatbot").warning("shown")
logging.getLogger("chatbot").info("information")
for name in ("uvicorn.error", "asyncio"):
    logging.getLogger(name).error("traceback")
"""
    assert re.fullmatch(r"\d{4}-\d\d-\d\d [\d:,]+ shown\n", python(code).stderr)


def test_exit_code_is_that_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "serve", lambda settings: 7)
    assert start(CHAT_LINE.parse(["--serve", "localhost:0"])) == 7


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "chatbot.chat.server.run", None)
    with pytest.raises(UserError, match=r"--serve: .*; run `make serve`"):
        start(CHAT_LINE.parse(["--serve", "localhost:0"]))


@pytest.mark.parametrize(
    ("trusted", "client"),
    [((), "127.0.0.1"), (("127.0.0.0/8",), "192.0.2.9"), (("10.0.0.0/8",), "127.0.0.1")],
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
        (("--export", "made", "--also", "c"), ["made", "c"]),
    ],
)
def test_models_of_the_command_line(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], names: list[str]
) -> None:
    """A missing default attempt is an error unless all attempts are offered."""
    monkeypatch.setattr(run, "read_manifest", lambda folder: None)
    for name in ("a", "b", "c"):
        (work_dir / "checkpoints" / name).mkdir(parents=True)
        for file in ("config.json", "last"):
            (work_dir / "checkpoints" / name / file).touch()
    settings = CHAT_LINE.parse(["--serve", "127.0.0.1:0", *flags])
    assert [path.name for path in _find_directories(settings)] == names
    for wrong in ((), ("--also", "a"), ("--attempt", "x", "--all-attempts"), ("--attempt", "a", "--also", "x")):
        with pytest.raises(UserError, match="no such attempt"):
            _find_directories(CHAT_LINE.parse(["--serve", "127.0.0.1:0", *wrong]))


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    loopback = ("127.0.0.1", "127.1.2.3", "::1", "LocalHost")
    assert [is_loopback(host) for host in (*loopback, "0.0.0.0", "10.0.0.1")] == [*[True] * 4, *[False] * 2]
    assert CHAT_LINE.parse(["--serve", "[::1]:80"]).server.address == ("::1", 80)
    with contextlib.suppress(UserError), listening_socket("::1", 0) as listener:  # not of every machine
        assert socket_url(listener) == f"http://[::1]:{listener.getsockname()[1]}"
    assert memory_limit(5) == 5_000_000
    assert memory_limit(None) > 10**8
    for error in (AttributeError, ValueError, OSError):  # on some systems
        monkeypatch.setattr(os, "sysconf", Mock(side_effect=error))
        assert memory_limit(None) == 4_000_000_000
    for allowed, text in (
        ((), "and web pages of any site can use 0.0.0.0 without a key; add"),
        (("a",), "add --api-key-file"),
    ):
        warning = access_warning("0.0.0.0", [], allowed)
        assert warning.startswith("Warning: other machines")
        assert text in warning
        assert len(warning) < 200
    assert [access_warning("0.0.0.0", [b"key"], ()), access_warning("127.0.0.1", [], ())] == ["", ""]
