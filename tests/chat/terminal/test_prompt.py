"""The keys, history and fallback of the prompt, in the process of the test."""

import contextlib
import io
import os
import threading
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session

from chatbot.chat.terminal.prompt import history_path, line_reader

Ask = Callable[..., str]


@contextlib.contextmanager
def prompt(monkeypatch: pytest.MonkeyPatch, shown: list[str], *streams: str) -> Iterator[Ask]:
    """Make these standard streams a terminal.

    Yield a function that types keys, types others when a text is shown, and returns the line that was read.
    """
    keyboard, slave = os.openpty()
    tty.setraw(slave)  # Keys that are typed before the prompt are not converted.
    later: list[tuple[str, str]] = []

    def show() -> None:
        with contextlib.suppress(OSError):  # closed
            while data := os.read(keyboard, 4096):
                shown.append(data.decode(errors="replace"))
                if later and later[0][0] in "".join(shown):
                    os.write(keyboard, later.pop()[1].encode())

    reader = threading.Thread(target=show)
    reader.start()
    with create_app_session(), contextlib.ExitStack() as files:
        for name in streams:
            file = files.enter_context(open(os.dup(slave), "r" if name == "stdin" else "w", encoding="utf-8"))
            monkeypatch.setattr(f"sys.{name}", file)
        os.close(slave)
        read_line = line_reader()

        def ask(keys: str, *then: tuple[str, str]) -> str:
            later[:] = then
            os.write(keyboard, keys.encode())
            return read_line()

        yield ask
    reader.join()
    os.close(keyboard)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_keys_of_the_line_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    with prompt(monkeypatch, shown, "stdin", "stdout") as ask:
        assert ask("\x1b[200~\na\r\nb\rc\x1b\n\x1b[201~\r") == "a b c\ufffd"
        assert ask("unfinished\x03kept\r") == "kept"
        for key, error in {"\x03": KeyboardInterrupt, "\x04": EOFError}.items():
            with pytest.raises(error):
                ask(key)
        assert ask("/se", ("show the decoding", "\t\r")) == "/set"  # chosen in the menu
        assert ask("\x1b[A\x1b[A\r") == "kept"
    assert "\x1b[0;32m> " in "".join(shown)  # green
    assert "\x1b[6n" not in "".join(shown)  # asks for the position of the cursor
    assert "+kept" in history_path().read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", ["dumb", "unknown"])
def test_terminal_without_a_line_editor(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TERM", name)
    shown: list[str] = []
    with prompt(monkeypatch, shown, "stdin", "stdout") as ask:
        assert ask("你好\n") == "你好"
    assert "".join(shown) == "> "


def test_prompt_is_not_among_replies_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with prompt(monkeypatch, [], "stdin") as ask:
        assert ask("你好\n") == "你好"
    assert capsys.readouterr() == ("", "> ")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(EOFError):
        line_reader()()
    assert capsys.readouterr() == ("", "> \n")


def test_history_that_cannot_be_saved(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", os.devnull)
    with prompt(monkeypatch, [], "stdin", "stdout") as ask:
        assert ask("你好\r") == "你好"
        assert ask("\x1b[A\r") == "你好"
    assert capsys.readouterr().err == (
        "The input history cannot be saved: /dev/null/chatbot/chat_history: Not a directory\n"
    )
