"""The chat in a real pseudo-terminal, with the fake model."""

import stat
from pathlib import Path

import pytest

from tests.chat.terminal.fake_model import RAW, SLOW
from tests.chat.terminal.pseudo_terminal import FAKE, PseudoTerminal

pytestmark = pytest.mark.system

CTRL_C, CTRL_D, UP, LEFT, BACKSPACE, TAB = "\x03", "\x04", "\x1b[A", "\x1b[D", "\x7f", "\t"
PASTE = "\x1b[200~{}\x1b[201~"
INTRODUCTION = """Talking to fake: 1,000 pairs from
pairs.tsv; step 1,200; 3.200 nats per
character on held-out pairs.
The model reads 2 previous turns with
each question.
/help lists all commands; Ctrl-D or
/exit ends the chat.
>"""


def test_chat_at_40_columns(tmp_path: Path) -> None:
    with PseudoTerminal(tmp_path, columns=40) as terminal:
        terminal.wait_for_prompt()
        assert terminal.text.startswith(INTRODUCTION)
        terminal.ask("你好吗" * 8 + LEFT + BACKSPACE + "们", "你们吗/1")
        terminal.ask("/st", "type //st")
        terminal.type("/sett")
        terminal.wait("show the decoding")  # of the menu
        terminal.type(TAB)
        terminal.wait("> /settings")
        terminal.ask("", "no_repeat_ngram")
        terminal.ask("/help", "//text")
        terminal.child.setwinsize(24, 60)
        terminal.screen.resize(24, 60)
        terminal.ask(PASTE.format("a\x1b[31m\nb\r\n"), "a\ufffd[31m b/1+2")
        terminal.ask(UP + "c", "a\ufffd[31m bc/1+2")
        terminal.ask("/set beam_size=2", "beam_size")
        terminal.ask(f"//{RAW}", f"/{RAW}\ufffd[31m\ufffd\ufffd/1+2")
        terminal.ask("/set default", "All settings")
        terminal.type(SLOW + "\r")
        terminal.wait(f"\n{SLOW}")
        terminal.type(CTRL_C)
        terminal.wait("Stopped.")
        terminal.wait_for_prompt()
        terminal.type("unfinished")
        terminal.wait("> unfinished")
        terminal.type(CTRL_C)
        terminal.wait_for_prompt()
        terminal.type(CTRL_C)
        terminal.wait("Ctrl-C again")
        terminal.wait_for_prompt()
        terminal.ask(PASTE.format("x" * 10_000), "xx/1")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
        assert "\x1b[31m\ufffd" not in terminal.received
        assert "Traceback" not in terminal.received
        assert "\x1b[0;32m> " in terminal.received  # the prompt is green
    history = tmp_path / "chatbot" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "+/sett" in history.read_text()


@pytest.mark.parametrize(
    ("variables", "encoding"),
    [
        ({"TERM": "dumb"}, "utf-8"),
        ({"NO_COLOR": "1"}, "utf-8"),
        ({"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, "utf-8"),
        ({"PYTHONIOENCODING": "gbk", "LC_ALL": "POSIX", "PYTHONUTF8": "0"}, "gbk"),
    ],
    ids=["dumb", "no-color", "c-locale", "gbk"],
)
def test_chat_in_a_simple_terminal(tmp_path: Path, variables: dict[str, str], encoding: str) -> None:
    """It shows wide characters, a table and an error, and exits at the second Ctrl-C."""
    with PseudoTerminal(tmp_path, variables=variables, encoding=encoding) as terminal:
        terminal.wait_for_prompt()
        terminal.ask("你好", "你好/1")
        terminal.ask("/n 2", "2. 你好/2  (-1.50)")
        terminal.ask("/unknown", "no such command")
        terminal.type(CTRL_C)
        terminal.wait("Ctrl-C again")
        terminal.wait_for_prompt()
        terminal.type(CTRL_C)
        assert terminal.end() == 0
        assert "\x1b[3" not in terminal.received or "NO_COLOR" not in variables
        if variables.get("TERM") == "dumb":
            assert "\x1b" not in terminal.received.replace("\x1b[?2004h", "").replace("\x1b[?2004l", "")


def test_output_to_a_file_has_the_replies_only(tmp_path: Path) -> None:
    command = " ".join([*FAKE, "--follow"])
    with PseudoTerminal(tmp_path, ["bash", "-c", f"{command} > replies.txt"]) as terminal:
        terminal.wait_for_prompt()
        for line in ("你好", "/unknown", "/n 2", "exit"):
            terminal.type(line + "\r")
            if line != "exit":
                terminal.wait_for_prompt()
        assert terminal.end() == 0
    assert (tmp_path / "replies.txt").read_text() == "你好/1\n1. 你好/1  (-0.50)\n2. 你好/2  (-1.50)\n"
