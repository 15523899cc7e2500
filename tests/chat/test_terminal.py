"""The chat through a pipe and in a pseudo-terminal."""

import io
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pexpect
import pytest

from chatbot.chat.conversation import Conversation
from chatbot.chat.terminal import answer_lines, chat, set_encoding
from chatbot.config.decoding import DecodingSettings
from chatbot.inference.replier import Reply
from chatbot.inference.responder import Responder
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY
from tests.commands import ENVIRONMENT, command, run
from tests.inference.texts import EMPTY, UNUSUAL
from tests.training.small_run import train_small


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an attempt of two steps."""
    folder = tmp_path_factory.mktemp("chat")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("pairs.tsv").write_text("你好\t你好呀\n吃了吗\t吃了\n")
        train_small(1, data=("pairs.tsv",), steps=2)
    return folder


class Echo(Responder):
    """A responder without a model."""

    def __init__(self, n_best: int = 1) -> None:
        self.decoding = DecodingSettings(beam_size=3, n_best=n_best)

    def reply(self, text: str, history: Sequence[str] = ()) -> str:
        return text.strip()

    def stream(self, text: str, history: Sequence[str] = ()) -> Iterator[str]:
        return iter(text.strip())

    def n_best(self, text: str, history: Sequence[str] = ()) -> list[Reply]:
        return [Reply(text.strip(), -0.5), Reply("no", -1.25)]


class Console(io.TextIOWrapper):
    """A text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_pipe_gets_one_utf8_reply_per_line(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the encoding of the locale is ASCII."""
    monkeypatch.chdir(attempt)
    monkeypatch.delitem(ENVIRONMENT, "PYTHONIOENCODING", raising=False)
    for name, value in {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}.items():
        monkeypatch.setitem(ENVIRONMENT, name, value)
    texts = [*EMPTY, *UNUSUAL, "a\rb"]
    completed = run("chat.py", stdin="\n".join(texts).encode() + b"\n\xff\xfe\r\nlast")
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


def test_chat_works_without_readline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Windows has no readline."""
    monkeypatch.setitem(sys.modules, "readline", None)
    monkeypatch.setattr("sys.stdin", Console(io.BytesIO("你好\n".encode("gbk")), encoding="gbk"))
    before = signal.getsignal(signal.SIGINT)
    try:
        assert chat(Echo(), "echo") == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().out == "> 你好\n> "


def test_n_best_replies_are_lines_with_scores_in_a_terminal_and_the_best_one_through_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        for stream in (Console, io.TextIOWrapper):
            monkeypatch.setattr("sys.stdin", stream(io.BytesIO(b"hi\n"), encoding="utf-8"))
            assert chat(Echo(n_best=2), "echo") == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().out == "> 1. hi  (-0.50)\n2. no  (-1.25)\n> hi\n"


@pytest.mark.parametrize("history", [0, 2])
def test_new_forgets_the_turns_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], history: int
) -> None:
    """Without history, /new is a question as any other."""

    class Recorded(Echo):
        def stream(self, text: str, history: Sequence[str] = ()) -> Iterator[str]:
            histories.append(list(history))
            return iter([EMPTY_QUESTION_REPLY] if not text else ["re ", text])

    histories: list[list[str]] = []
    monkeypatch.setattr("sys.stdin", Console(io.BytesIO(b"a\n\nb\n /NEW \nc\n"), encoding="utf-8"))
    before = signal.getsignal(signal.SIGINT)
    try:
        chat(Recorded(), "echo", history)
    finally:
        signal.signal(signal.SIGINT, before)
    assert histories == ([[], ["a", "re a"], ["a", "re a"], []] if history else [[]] * 5)
    assert ("/new begins a new conversation" in capsys.readouterr().err) == bool(history)


def test_each_line_is_answered_before_the_next_is_read() -> None:
    """The program at the other end of the pipe waits for the reply: it must not stay in a buffer."""
    received = io.BytesIO()
    replies = io.TextIOWrapper(io.BufferedWriter(received), encoding="utf-8")

    def lines() -> Iterator[str]:
        for line in ("a\n", "b\n"):
            received_before.append(received.getvalue())
            yield line

    received_before: list[bytes] = []
    answer_lines(Conversation(Echo(), 0), lines(), replies)
    assert received_before == [b"", b"a\n"]
    assert received.getvalue() == b"a\nb\n"


def test_closed_output_ends_chat_without_traceback(attempt: Path) -> None:
    chat = " ".join(command("chat.py"))
    output, status = pexpect.run(
        f"bash -c 'yes 你好 | {chat} | head -n 1; echo codes ${{PIPESTATUS[1]}}'",
        cwd=str(attempt),
        env=ENVIRONMENT,
        withexitstatus=True,
        timeout=120,
        encoding="utf-8",
    )
    assert status == 0
    assert "Traceback" not in output
    assert "codes 1" in output


@pytest.mark.parametrize("word", ["exit", " Quit "])
def test_exit_and_quit_leave_the_terminal_but_not_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    before = signal.getsignal(signal.SIGINT)
    text = f"hi\n{word}\nexit now\n".encode()
    try:
        monkeypatch.setattr("sys.stdin", Console(io.BytesIO(text), encoding="utf-8"))
        assert chat(Echo(), "echo") == 0
        assert capsys.readouterr().out == "> hi\n> "
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
        assert chat(Echo(), "echo") == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().out == f"hi\n{word.strip()}\nexit now\n"


def test_terminal_in_a_strict_c_locale_reads_and_writes_utf8(work_dir: Path) -> None:
    code = "import tests.chat.test_terminal as t, sys; sys.exit(t.chat(t.Echo(), 'echo'))"
    environment = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "TERM": "dumb"}
    with pexpect.spawn(
        sys.executable, ["-c", code], env={**ENVIRONMENT, **environment}, encoding="utf-8", timeout=60, echo=False
    ) as terminal:
        terminal.expect_exact("> ")
        terminal.sendline("你好😀")
        terminal.expect_exact("你好😀\r\n> ")
        terminal.sendline("exit")
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 0


@pytest.mark.parametrize("key", ["Ctrl-D", "Ctrl-C"])
def test_terminal_chat_ends_without_traceback(attempt: Path, key: str) -> None:
    arguments = command("chat.py", "--beam-size", "1")
    with pexpect.spawn(
        arguments[0],
        arguments[1:],
        cwd=str(attempt),
        env={**ENVIRONMENT, "TERM": "dumb"},
        encoding="utf-8",
        timeout=120,
    ) as chat:
        chat.expect_exact("Ctrl-D or Ctrl-C exits.")
        for text in ("你好", "", "how are you"):
            chat.expect_exact("> ")
            chat.sendline(text)
        chat.expect_exact("> ")
        chat.sendeof() if key == "Ctrl-D" else chat.sendintr()
        chat.expect(pexpect.EOF)
        assert "Traceback" not in chat.before
    assert chat.exitstatus == 0


def test_ctrl_c_while_loading_ends_without_traceback(attempt: Path) -> None:
    arguments = command("chat.py")
    with pexpect.spawn(
        arguments[0], arguments[1:], cwd=str(attempt), env=ENVIRONMENT, encoding="utf-8", timeout=120
    ) as chat:
        chat.expect(pexpect.TIMEOUT, timeout=2)
        chat.sendintr()
        chat.expect(pexpect.EOF)
        assert "Traceback" not in chat.before
    assert chat.exitstatus == 130 or chat.signalstatus == signal.SIGINT
