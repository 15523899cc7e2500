"""The file with the questions of earlier sessions."""

import stat
from pathlib import Path

import pytest

from chatbot.chat.terminal.prompt import history_path, make_private


def test_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history"
    for content in ("", "+a question\n"):
        make_private(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text() == content
        path.write_text("+a question\n")
        path.chmod(0o644)


def test_path_is_in_the_folder_of_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/states")
    assert history_path() == Path("/states/chatbot/chat_history")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        monkeypatch.setenv("HOME", "/home/me")
        assert history_path() == Path("/home/me/.local/state/chatbot/chat_history")
