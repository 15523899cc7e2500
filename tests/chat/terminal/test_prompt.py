"""The file with the questions of earlier sessions."""

import stat
from pathlib import Path

import pytest
from prompt_toolkit.history import FileHistory

from chatbot.chat.terminal import prompt
from chatbot.chat.terminal.prompt import history_path, make_private


def test_file_is_private_and_keeps_its_newer_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state" / "history"
    path.parent.mkdir()
    path.touch(0o644)
    make_private(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    history = FileHistory(path)
    for number in range(100):
        history.store_string(f"问题 {number}")
    monkeypatch.setattr(prompt, "LARGEST_HISTORY", 2000)
    make_private(path)
    assert path.stat().st_size <= 1001
    kept = [*history.load_history_strings()]
    assert kept == [f"问题 {number}" for number in range(99, 99 - len(kept), -1)]
    assert len(kept) > 10


def test_path_is_in_the_folder_of_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/states")
    assert history_path() == Path("/states/chatbot/chat_history")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        monkeypatch.setenv("HOME", "/home/me")
        assert history_path() == Path("/home/me/.local/state/chatbot/chat_history")
