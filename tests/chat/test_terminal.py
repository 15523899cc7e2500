"""The chat through a pipe and in a real pseudo-terminal: whatever is said, one line comes back."""

import io
import signal
from pathlib import Path

import pexpect
import pytest

from chatbot.chat.terminal import answer_lines
from chatbot.inference.responder import NOTHING_SAID, Responder
from chatbot.model.saved import load_trained
from tests.commands import ENVIRONMENT, command, run
from tests.training.test_trainer import trained

ODD = [
    "",
    " \t\u3000",
    "\x00\x07\u200b",
    "\x1b[31mred",
    "你好" * 5000,
    "😀👨\u200d👩\u200d👧 🇨🇳",
    "妳好嗎？請問國語怎麼說",
    "How are you today? I'm fine.",
    "\u202eabc",
    "<eos> <pad>",
    "\ud800",
]


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which an attempt was trained a little."""
    folder = tmp_path_factory.mktemp("chat")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("pairs.tsv").write_text("你好\t你好呀\n吃了吗\t吃了\n")
        trained(1, data=("pairs.tsv",), steps=2)
    return folder


@pytest.mark.parametrize("beam_size", [1, 5])
def test_anything_gets_one_line_on_one_trace(attempt: Path, monkeypatch: pytest.MonkeyPatch, beam_size: int) -> None:
    monkeypatch.chdir(attempt)
    responder = Responder(load_trained("default"), beam_size, 1.0)
    replies = [responder.reply(text) for text in ODD]
    assert all(reply.strip() and len(reply.splitlines()) == 1 for reply in replies)
    assert replies[:3] == [NOTHING_SAID] * 3
    assert responder.replier.traces == 1


def test_a_pipe_gets_a_line_for_each_line(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(attempt)
    said = "\n".join(ODD[:-1]).encode() + b"\n\xff\xfe\r\nlast"
    done = run("chat.py", said=said)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.decode().split("\n")) == len(ODD) - 1 + 2 + 1
    assert done.stdout.endswith(b"\n")


def test_lines_are_answered_as_they_come(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(attempt)
    replies = io.StringIO()

    class Lines(io.BytesIO):
        def __next__(self) -> bytes:
            asked.append(replies.getvalue().count("\n"))
            return super().__next__()

    asked: list[int] = []
    answer_lines(Responder(load_trained("default"), 1, 1.0), Lines(b"a\nb\n"), replies)
    assert asked == [0, 1, 2]


def test_a_reader_who_leaves_is_no_traceback(attempt: Path) -> None:
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


@pytest.mark.parametrize("leave", ["eof", "interrupt"])
def test_a_conversation_in_a_terminal_ends_politely(attempt: Path, leave: str) -> None:
    words = command("chat.py", "--beam-size", "1")
    with pexpect.spawn(
        words[0],
        words[1:],
        cwd=str(attempt),
        env={**ENVIRONMENT, "TERM": "dumb"},
        encoding="utf-8",
        timeout=120,
    ) as chat:
        chat.expect_exact("Ctrl-D or Ctrl-C leaves.")
        for text in ("你好", "", "how are you"):
            chat.expect_exact("> ")
            chat.sendline(text)
        chat.expect_exact("> ")
        chat.sendeof() if leave == "eof" else chat.sendintr()
        chat.expect(pexpect.EOF)
        assert "Traceback" not in chat.before
    assert chat.exitstatus == 0


def test_ctrl_c_while_the_model_loads_is_no_traceback(attempt: Path) -> None:
    words = command("chat.py")
    with pexpect.spawn(words[0], words[1:], cwd=str(attempt), env=ENVIRONMENT, encoding="utf-8", timeout=120) as chat:
        chat.expect(pexpect.TIMEOUT, timeout=2)
        chat.sendintr()
        chat.expect(pexpect.EOF)
        assert "Traceback" not in chat.before
    assert chat.exitstatus == 130 or chat.signalstatus == signal.SIGINT
