"""python -m chatbot.chat.bots: flags, the token, and the run of the bot until a signal."""

import importlib.util
from pathlib import Path

import pytest

from chatbot import commands
from chatbot.attempts.files import CONFIG
from chatbot.chat import loading
from chatbot.chat.bots import start as bots
from chatbot.errors import UserError
from tests.chat.bots.telegram_stand_in import TOKEN, stand_in
from tests.chat.bots.test_conversations import echo
from tests.chat.server.fake_models import FakeEngine, served
from tests.chat.server.running import run_until_sigterm


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeEngine:
    """Return the engine of the attempt in `tmp_path`, an echo."""
    engine = FakeEngine(echo)
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: served(engine))
    (tmp_path / CONFIG).touch()
    return engine


def token_file(folder: Path, token: str = TOKEN) -> str:
    (folder / "token").write_text(token + "\n", encoding="utf-8")
    return str(folder / "token")


def test_telegram_answers_until_sigterm(tmp_path: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in() as api:

        def session() -> None:
            api.write("hello")
            assert api.sent(1)[0]["text"] == "hello"

        arguments = ["--token-file", token_file(tmp_path), "--api-url", api.url, "--attempt", f"{tmp_path}/."]
        assert run_until_sigterm(lambda: commands.run("bot telegram", arguments), session) == 0
        assert len(api.sent(1, timeout=0)) == 1
    assert [question.text for question in engine.questions] == ["a", "hello"]  # the first one warms it up
    assert engine.closed.is_set()
    assert TOKEN not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b" \n", "the file is empty; write the token"),
        (b"short", "does not contain a Telegram token"),
        (f"{TOKEN}\nb".encode(), "does not contain a Telegram token"),
        (TOKEN.encode() + b"\xff", "does not contain a Telegram token"),
        (TOKEN.encode() + b" " * 1000, "does not contain a Telegram token"),
        (None, "No such"),
    ],
)
def test_unusable_tokens_are_refused_without_showing_them(tmp_path: Path, content: bytes | None, error: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=error) as caught:
        commands.run("bot telegram", ["--token-file", str(file)])
    assert str(caught.value).startswith(f"--token-file {file}: ")
    assert not content or not content.strip() or content.decode("utf-8", "replace").strip() not in str(caught.value)
    file.write_bytes(b"\xef\xbb\xbf " + TOKEN.encode() + b" \r\n")
    assert bots.read_token(str(file)) == TOKEN
    with pytest.raises(UserError, match="Is a directory; the file must contain the token"):
        bots.read_token(str(tmp_path))


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="python-telegram-bot is not installed; run `make install-serve`"):
        commands.run("bot telegram", ["--token-file", "token"])
