"""python -m chatbot.chat.bots: flags, secrets, and the run of a bot until a signal."""

import contextlib
import http.client
import importlib.util
import json
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from chatbot import commands
from chatbot.chat import loading, service
from chatbot.chat.bots import start as bots
from chatbot.chat.bots.webhook import signed_headers
from chatbot.chat.loading import LoadedModel, ModelCard
from chatbot.config.attempts import CONFIG
from chatbot.config.bots import TELEGRAM, WEBHOOK
from chatbot.errors import UserError
from tests.chat.bots.engines import echo
from tests.chat.bots.telegram_stand_in import TOKEN, StandIn
from tests.chat.server.fake_models import FakeEngine
from tests.chat.server.running import run_until_sigterm
from tests.test_architecture import imported_at_once

SECRET = "a secret of the test"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeEngine:
    """The engine of the attempt in `tmp_path`, an echo."""
    engine, card = FakeEngine(echo), ModelCard("talk", 0, ("pairs.tsv",))
    loaded = LoadedModel(tmp_path, card, 2, lambda decoding: cast(Any, decoding))
    monkeypatch.setattr(loading, "load_model", lambda path, ratings: loaded)
    monkeypatch.setattr("chatbot.inference.engine.Engine", lambda responder: engine)
    (tmp_path / CONFIG).touch()
    return engine


def secret_file(folder: Path, secret: str = SECRET) -> str:
    (folder / "secret").write_text(secret + "\n", encoding="utf-8")
    return str(folder / "secret")


def test_webhook_answers_until_sigterm(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replies: list[Any] = []

    def session() -> None:
        body = json.dumps({"conversation": "a", "text": "hello"}).encode()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=240)) as connection:
            connection.request("POST", "/", body, signed_headers(SECRET.encode(), "request", body))
            replies.append(json.loads(connection.getresponse().read()))
            connection.request("GET", "/health")
            replies.append(json.loads(connection.getresponse().read()))

    with service.listening_socket("--listen", "127.0.0.1", 0) as listener:
        listener.listen()  # the session does not wait for uvicorn
        port = listener.getsockname()[1]
        monkeypatch.setattr(service, "listening_socket", lambda *address: listener)
        arguments = ["--secret-file", secret_file(tmp_path), "--seen-file", str(tmp_path / "seen")]
        arguments += ["--attempt", f"{tmp_path}/."]
        assert run_until_sigterm(lambda: commands.run("bot webhook", arguments), session) == 0
    assert replies == [{"reply": "hello"}, {"status": "ok"}]
    assert [question.text for question in engine.questions] == ["a", "hello"]  # the first one warms it up
    assert engine.closed.is_set()
    printed = capsys.readouterr().err
    assert f"Answering at http://127.0.0.1:{port}/" in printed
    assert SECRET not in printed


def test_telegram_answers_until_sigterm(tmp_path: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    api = StandIn()

    def session() -> None:
        api.write("hello")
        assert api.sent(1)[0]["text"] == "hello"

    arguments = ["--token-file", secret_file(tmp_path, TOKEN), "--api-url", api.url, "--attempt", f"{tmp_path}/."]
    try:
        assert run_until_sigterm(lambda: commands.run("bot telegram", arguments), session) == 0
        assert len(api.sent(1, timeout=0)) == 1
    finally:
        api.close()
    assert TOKEN not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b" \n", "the file is empty; one line"),
        (b"a\nb", "one line"),
        (b"\xff\xfe", "one line"),
        (b"a" + b" " * 1001, "one line"),
        (None, "No such"),
    ],
)
def test_unusable_secrets_are_refused_without_showing_them(tmp_path: Path, content: bytes | None, error: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=error) as caught:
        bots.read_secret("--token-file", str(file))
    assert str(caught.value).startswith(f"--token-file {file}: ")
    assert bots.read_secret("--token-file", secret_file(tmp_path)) == SECRET
    with pytest.raises(UserError, match="Is a directory; give a file"):
        bots.read_secret("--token-file", str(tmp_path))


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = secret_file(tmp_path, "short")
    with pytest.raises(UserError, match="at least 16 characters"):
        commands.run("bot webhook", ["--secret-file", file])
    with pytest.raises(UserError, match="no token of Telegram") as caught:
        commands.run("bot telegram", ["--token-file", file])
    assert Path(file).read_text(encoding="utf-8").strip() not in str(caught.value)
    with socket.create_server(("127.0.0.1", 0)) as used:
        address = f"127.0.0.1:{used.getsockname()[1]}"
        with pytest.raises(UserError, match=f"--listen {address}: .*a free port"):
            commands.run("bot webhook", ["--secret-file", secret_file(tmp_path), "--listen", address])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="python-telegram-bot is not installed; run `make serve`"):
        commands.run("bot telegram", ["--token-file", file])
    with pytest.raises(UserError, match="uvicorn is not installed; run `make serve`"):
        commands.run("bot webhook", ["--secret-file", file])


def test_flags_of_both_bots() -> None:
    settings = TELEGRAM.parse(["--token-file", "f", "--attempt", "weibo", "--beam-size", "3"])
    assert (settings.bot.attempt, settings.bot.decoding.beam_size) == ("weibo", 3)
    webhook = ["--secret-file", "f"]
    assert WEBHOOK.parse([*webhook, "--listen", "[::1]:80"]).address == ("::1", 80)
    for url in ("ftp://a", "http://", "http://a:99999"):
        with pytest.raises(UserError, match=f"--callback {url}: expected a URL"):
            WEBHOOK.parse([*webhook, "--callback", url])
    with pytest.raises(UserError, match="give one of the two"):
        WEBHOOK.parse([*webhook, "--attempt", "a", "--export", "b"])


def test_commands_start_without_tensorflow_and_the_packages_of_the_services() -> None:
    found = imported_at_once("chatbot.chat.bots.start")
    assert "chatbot.config.bots" in found
    assert not {"tensorflow", "keras", "telegram", "uvicorn", "starlette"} & {name.split(".")[0] for name in found}
