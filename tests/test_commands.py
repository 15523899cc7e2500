"""The commands: fast help, their names, and a one-line error with exit code 2 for invalid input."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from chatbot.command_line import CommandLine
from chatbot.commands import COMMANDS, names_within, program
from chatbot.config.chat import CHAT, serve_settings
from chatbot.version import __version__
from tests.commands import python, run
from tests.in_process import call

RUNNING = [name for name, row in COMMANDS.items() if row.function]
SLOW = {"tensorflow", "numpy", "jieba", "onnxruntime", "fastapi", "uvicorn", "matplotlib", "pyarrow", "yaml"}


def test_help_and_mistakes_import_little() -> None:
    """No library that takes long, and in all few modules, most of them of Python's own library."""
    program = f"""
import contextlib, io, sys
from chatbot.commands import COMMANDS, run
from chatbot.errors import UserError
for command in COMMANDS:
    for flag in ("--help", "-h", "--nonsense"):
        with contextlib.suppress(SystemExit, UserError), contextlib.redirect_stderr(io.StringIO()):
            with contextlib.redirect_stdout(io.StringIO()):
                run(command, [flag])
print({SLOW} & sys.modules.keys(), len(sys.modules))
"""
    completed = python(program)
    found, number = completed.stdout.rsplit(" ", 1)
    assert (found, completed.stderr) == ("set()", "")
    assert int(number) < 300


def help_of(line: CommandLine[Any], *arguments: str) -> str:
    """What a command prints before it exits with code 0."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as end:
        line.parse(arguments)
    assert end.value.code == 0
    return printed.getvalue()


def flags_in(text: str) -> list[str]:
    """The flags of a help, without those of the help itself."""
    flags = re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)
    return [flag for flag in flags if flag not in ("--help", "--version")]


@pytest.mark.parametrize("command", RUNNING)
def test_help_has_every_flag_with_its_default_in_its_group(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And names no file of the checkout. The short help is short, or the whole one."""
    monkeypatch.setattr("sys.argv", ["duida"])
    line = COMMANDS[command].command_line
    assert line.command == command
    short, whole = help_of(line, "-h"), help_of(line, "--help")
    for text in (short, whole):
        assert f"usage: duida {command} " in text
        assert not re.search(r"docs/|\.md\b|\.py\b", text)
    stated = re.findall(r"\((?:default: [^()]|required\))", " ".join(whole.split()))
    assert len(stated) == len(line.flags)
    assert [flag for group in line.groups for flag in flags_in(help_of(line, "--help", group))] == flags_in(whole)
    assert len(flags_in(short)) <= 20
    assert short == whole or len(flags_in(whole)) > 10


def test_list_of_commands_fits_one_screen() -> None:
    lines = call("chatbot").out.splitlines()
    assert lines == call("chatbot --help").out.splitlines() == call("chatbot -h").out.splitlines()
    assert lines[0] == "usage: python -m chatbot COMMAND [flags]"
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert [name for name in named if name in names_within("")] == names_within("")
    for command in ("train", "serve"):
        assert call(f"chatbot {command} --help").out.startswith(f"usage: python -m chatbot {command}")
    for group in ("data", "bot"):
        lines = call(f"duida {group}").out.splitlines()
        assert lines[0] == f"usage: duida {group} COMMAND [flags]"
        named = [line.split()[0] for line in lines if line.startswith("  ") and "duida" not in line]
        assert named == names_within(group)
    listed = call("duida attempts --help").out.partition("commands, each with its own --help:\n")[2].splitlines()
    assert [line.split()[0] for line in listed if line.startswith("  ")] == names_within("attempts")


@pytest.mark.parametrize(
    "line",
    ["train.py", "chat.py", "duida", "chatbot", "chatbot.corpus", "chatbot.chat.bots"]
    + ["chatbot.evaluation", "chatbot.attempts", "chatbot.export", "chatbot.corpus inspect"]
    + [f"chatbot {name}" for name in ("train", "data", "data pairs", "attempts", "attempts delete", "completion")],
)
def test_version_flag_prints_package_version(line: str) -> None:
    assert call(line, "--version") == (0, f"duida {__version__}\n", "")


@pytest.mark.parametrize(
    ("called", "command", "shown"),
    [
        ("bin/duida.exe", "chat", "duida chat"),
        ("/site/chatbot/__main__.py", "chat --export x", "python -m chatbot chat --export x"),
        ("/site/benchmarks/__main__.py", "benchmarks train", "python -m benchmarks train"),
        ("chat.py", "serve", "python chat.py --serve"),
        ("pytest", "init-config", "python -m chatbot init-config"),
    ],
)
def test_commands_are_named_as_they_are_called(
    monkeypatch: pytest.MonkeyPatch, called: str, command: str, shown: str
) -> None:
    monkeypatch.setattr("sys.argv", [called])
    assert program(command) == shown


def test_server_of_duida_is_on_the_loopback_interface_by_default() -> None:
    assert serve_settings([]) == CHAT.parse(["--serve", "127.0.0.1:8000"])
    assert serve_settings(["--serve", "[::1]:80"]).server.address == ("::1", 80)


@pytest.mark.parametrize("line", ["chatbot tran", "train.py --data none.tsv", "chat.py --attempt none"])
def test_mistakes_are_one_line_of_a_process(work_dir: Path, line: str) -> None:
    """All the others, in test_refusals.py, are made in the process of the tests."""
    completed = run(*line.split())
    errors = [line for line in completed.stderr.decode().splitlines() if not line.startswith("NO GPU")]
    assert (completed.returncode, completed.stdout, len(errors)) == (2, b"", 1)
    assert errors[0].startswith("error: ")
    assert not Path("checkpoints").exists()
