"""How a command ends: its exit code, and one line for what a user can fix."""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chatbot.errors import EXIT_LOST, LostError, UserError, exit_code_of
from tests.commands import ENVIRONMENT, run

REMEDY = "check the path, its permissions and the free space"


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(
    ("result", "code", "printed"),
    [
        (None, 0, ""),
        (3, 3, ""),
        (UserError("a: b; c"), 2, "error: a: b; c\n"),
        (UserError("a", ["one", "two"]), 2, "one\ntwo\nerror: a\n"),
        (OSError(28, "No space left", "f"), 2, f"error: f: No space left; {REMEDY}\n"),
        (OSError("odd"), 2, f"error: odd; {REMEDY}\n"),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
    ],
)
def test_exit_codes(result: object, code: int, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int | None:
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
        if isinstance(result, BaseException):
            raise result
        return result if isinstance(result, int) else None

    assert exit_code_of(main) == code
    assert capsys.readouterr() == ("", printed)


def test_missing_package_is_an_error_with_what_installs_it(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        importlib.import_module("no_such_package")

    assert exit_code_of(main) == 2
    line = "error: No module named 'no_such_package'; run `make install`, then `source .venv/bin/activate`; or pip inst"
    assert capsys.readouterr().err.startswith(line)


def test_mistakes_of_the_code_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        exit_code_of(lambda: 1 // 0)


PROGRAM = """
import sys, threading, time
from chatbot.errors import LostError, end_process, exit_code_of

def lose():
    raise LostError("machine 1: lost")

def main():
    print("before")
    if sys.argv[1] == "thread":
        threading.Thread(target=end_process, args=[LostError("machine 1: lost")]).start()
        time.sleep(600)
    elif sys.argv[1] == "main":
        lose()
    print("line\\n" * int(sys.argv[1]))

sys.exit(exit_code_of(main))
"""


@pytest.mark.parametrize(("place", "start"), [("main", b""), ("thread", b"\n")])
def test_a_lost_machine_ends_the_process_from_any_thread(place: str, start: bytes) -> None:
    """After what was printed before; a new line ends that of a progress bar."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM, place], env=ENVIRONMENT, capture_output=True, timeout=240)
    assert (ended.returncode, ended.stdout) == (EXIT_LOST, b"before\n")
    assert ended.stderr == start + b"error: machine 1: lost\n"
    assert LostError("a").exit_code == EXIT_LOST


@pytest.mark.parametrize("lines", ["1", "100000"])
def test_a_reader_that_is_gone_is_no_error(lines: str) -> None:
    """Be it noticed at the end, or before."""
    reader, writer = os.pipe()
    os.close(reader)
    buffered = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", PROGRAM, lines]
    ended = subprocess.run(command, env=buffered, stdout=writer, stderr=subprocess.PIPE, timeout=240, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, b"")


STRICT_C_LOCALE = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "你好😀".encode()),
        ({"PYTHONIOENCODING": "gbk"}, "你好".encode("gbk") + rb"\U0001f600"),
        ({"PYTHONIOENCODING": "ascii"}, rb"\u4f60\u597d\U0001f600"),
    ],
)
def test_text_is_readable_or_escaped(work_dir: Path, variables: dict[str, str], expected: bytes) -> None:
    """Also in a strict C locale."""
    others = {
        name: value for name, value in ENVIRONMENT.items() if name not in ("PYTHONIOENCODING", "LANG", "LC_CTYPE")
    }
    Path("pairs.tsv").write_text("你好😀\t好\n", encoding="utf-8")
    completed = run("chatbot.corpus", "inspect", "pairs.tsv", environment={**others, **STRICT_C_LOCALE, **variables})
    assert (completed.returncode, completed.stderr) == (0, b"")
    assert expected in completed.stdout.replace(b" ", b"")
