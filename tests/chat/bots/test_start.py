"""python -m chatbot.chat.bots: flags, the token, and the run of the bot until a signal."""

import importlib.util
from pathlib import Path
from typing import Any, cast

import pytest

from chatbot import commands
from chatbot.attempts.files import CONFIG
from chatbot.chat import loading
from chatbot.chat.bots import start as bots
from chatbot.chat.loading import LoadedModel, ModelCard
from chatbot.config.chat import TELEGRAM
from chatbot.errors import UserError
from tests.chat.bots.telegram_stand_in import TOKEN, stand_in
from tests.chat.bots.test_conversations import echo
from tests.chat.server.fake_models import FakeEngine
from tests.chat.server.running import run_until_sigterm


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeEngine:
    """The engine of the attempt in `tmp_path`, an echo."""
    engine, card = FakeEngine(echo), ModelCard("talk", 0, ("pairs.tsv",))
    loaded = LoadedModel(tmp_path, card, 2, cast(Any, None), cast(Any, engine))
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: loaded)
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
        (b" \n", "the file is empty; one line"),
        (b"short", "no token of Telegram"),
        (f"{TOKEN}\nb".encode(), "no token of Telegram"),
        (TOKEN.encode() + b"\xff", "no token of Telegram"),
        (TOKEN.encode() + b" " * 1000, "no token of Telegram"),
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
    with pytest.raises(UserError, match="Is a directory; give a file"):
        bots.read_token(str(tmp_path))


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="python-telegram-bot is not installed; run `make serve`"):
        commands.run("bot telegram", ["--token-file", "token"])


def test_flags() -> None:
    settings = TELEGRAM.parse(["--token-file", "f", "--attempt", "weibo", "--beam-size", "3"])
    assert (settings.attempt, settings.decoding.beam_size) == ("weibo", 3)
    with pytest.raises(UserError, match="give one of the two"):
        TELEGRAM.parse(["--token-file", "f", "--attempt", "a", "--export", "b"])
