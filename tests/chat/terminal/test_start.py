"""The chat through a pipe."""

import io
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chatbot.chat.loading import CurrentModel
from chatbot.chat.start import answer_lines, chat, set_encoding
from chatbot.chat.terminal.session import Session
from chatbot.config.chat import CHAT
from chatbot.config.decoding import DecodingSettings
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY
from tests.chat.terminal.fake_model import RAW, fake_model
from tests.chat.terminal.pseudo_terminal import FAKE
from tests.chat.terminal.typed import Line, piped, typed
from tests.commands import ENVIRONMENT
from tests.inference.messages import EMPTY, UNUSUAL


class Console(io.TextIOWrapper):
    """A text stream that pretends to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_pipe_gets_one_utf8_reply_per_line(tmp_path: Path) -> None:
    """This holds even in an ASCII locale."""
    ascii_locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONIOENCODING"} | ascii_locale
    texts = [*EMPTY, *UNUSUAL, "a\rb"]
    text = "\n".join(texts).encode() + b"\n\xff\xfe\r\nlast"
    completed = subprocess.run(FAKE, input=text, capture_output=True, cwd=tmp_path, env=environment, timeout=240)
    assert (completed.returncode, completed.stderr) == (0, b"")
    *lines, remainder = completed.stdout.decode().split("\n")
    assert lines[: len(EMPTY)] == [EMPTY_QUESTION_REPLY] * len(EMPTY)
    assert (len(lines), remainder) == (len(texts) + 2, "")


@pytest.mark.parametrize(
    ("stream", "variables", "encoding"),
    [
        (io.TextIOWrapper, {}, "utf-8"),
        (io.TextIOWrapper, {"PYTHONIOENCODING": "gbk"}, "gbk"),
        (Console, {}, "gbk"),
    ],
)
def test_console_keeps_its_encoding_and_pipe_is_utf8(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.TextIOWrapper], variables: dict[str, str], encoding: str
) -> None:
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    binary = io.BytesIO()
    output = stream(binary, encoding="gbk")
    set_encoding(output)
    print("好😀", file=output, end="", flush=True)
    assert binary.getvalue() == "好😀".encode(encoding, "replace")


def test_commands_are_questions_and_only_the_best_reply_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    lines = "hi\nexit\n/why\n\n/new\n"
    assert piped(fake_model(turns=2), lines, "--beam-size", "2", "--n-best", "2") == 0
    replies = ["hi/1", "exit/1+2", "/why/1+2", EMPTY_QUESTION_REPLY, "/new/1"]
    assert capsys.readouterr() == ("".join(f"{reply}\n" for reply in replies), "")


def test_lines_of_a_pipe_do_not_depend_on_one_another(capsys: pytest.CaptureFixture[str]) -> None:
    """If the model reads no turns, equal lines have equal replies."""
    assert piped(fake_model(2), "a\na\n", "--retrieve", "2", "--beam-size", "2", "--history", "0") == 0
    assert capsys.readouterr().out.splitlines() == ["a/1", "a/1"]


@pytest.mark.parametrize(
    ("stream", "reply"), [(io.TextIOWrapper, "\x1b[31m\x07\u202e"), (Console, "\ufffd[31m\ufffd\ufffd")]
)
def test_control_characters_reach_a_pipe_but_not_a_terminal(stream: type[io.TextIOWrapper], reply: str) -> None:
    model = CurrentModel(fake_model(), DecodingSettings(beam_size=2))
    replies = stream(io.BytesIO(), encoding="utf-8")
    answer_lines(model, 0, [f"{RAW}\n"], replies)
    replies.seek(0)
    assert replies.read() == f"{RAW}{reply}/1\n"


def test_each_line_is_answered_before_the_next_is_read() -> None:
    """The reply must not stay in a buffer, because the other program waits for it."""
    received = io.BytesIO()
    replies = io.TextIOWrapper(io.BufferedWriter(received), encoding="utf-8")

    def lines() -> Iterator[str]:
        for line in ("a\n", "b\n"):
            received_before.append(received.getvalue())
            yield line

    received_before: list[bytes] = []
    model = CurrentModel(fake_model(), DecodingSettings())
    answer_lines(model, 0, lines(), replies)
    assert received_before == [b"", b"a/1\n"]
    assert received.getvalue() == b"a/1\nb/1\n"


def test_interrupted_command_and_second_interrupt_at_the_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(session: Session, line: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("chatbot.chat.terminal.commands.handle_line", stopped)
    keys: list[Line] = [KeyboardInterrupt, "你好", KeyboardInterrupt, KeyboardInterrupt, "never read"]
    assert typed(fake_model(), keys) == 0
    again = "Press Ctrl-C again or Ctrl-D to end the chat."
    assert capsys.readouterr().err.splitlines()[2:] == [again, "Stopped.", again, ""]


def test_chat_without_a_console_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert chat(fake_model(), CHAT.parse([])) == 0


@pytest.mark.parametrize(("encoding", "notes"), [("latin-1", 1), ("gbk", 0), ("utf-8", 0)])
def test_terminal_without_chinese_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], encoding: str, notes: int
) -> None:
    monkeypatch.setattr("chatbot.chat.start.set_encoding", lambda stream: None)
    monkeypatch.setattr("sys.stdout", Console(io.BytesIO(), encoding=encoding, errors="replace"))
    assert typed(fake_model(), ["你好", "在吗"]) == 0
    assert (
        capsys.readouterr().err.count(f"The terminal's encoding {encoding} does not support Chinese; set LC_ALL=")
        == notes
    )
