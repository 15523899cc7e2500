"""The script of `duida completion`, in the shells that are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from chatbot import commands
from chatbot.completion import script

CASES = {
    "duida ": {"train", "serve", "init-config"},
    "duida tr": {"train"},
    "duida train --rnn": {"--rnn-size"},
    "duida train --attempt a --cell ": {"lstm", "gru"},
    "duida export weibo --format ": {"onnx", "savedmodel"},
    "duida data ": {"inspect", "encode", "--help"},
    "duida data inspect --js": {"--json"},
    "duida attempts comp": {"compare"},
    "duida attempts prune --y": {"--yes"},
    "duida attempts --j": {"--json"},
    "duida bot telegram --tok": {"--token-file"},
    "duida train --data pairs": set(),  # the shell completes names of files
}


@pytest.mark.parametrize("line", CASES)
def test_bash_completes_commands_flags_and_values(work_dir: Path, line: str) -> None:
    text = script("bash", commands.COMMANDS, commands.COMMAND_LINES)
    words = [*line.split(), *([""] if line.endswith(" ") else [])]
    program = (
        f"{text}\nCOMP_WORDS=({' '.join(word or chr(39) * 2 for word in words)}); COMP_CWORD={len(words) - 1}; _duida"
    )
    completed = subprocess.run(
        ["bash", "-c", f'{program}; printf "%s\\n" "${{COMPREPLY[@]}}"'],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert completed.stderr == ""
    assert CASES[line] <= {*completed.stdout.split()}
    if not line.endswith(" "):
        assert CASES[line] == {*completed.stdout.split()}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_the_script(work_dir: Path) -> None:
    text = script("zsh", commands.COMMANDS, commands.COMMAND_LINES)
    program = f"{text}\nCOMP_WORDS=(duida train --cell ''); COMP_CWORD=3\n"
    completed = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert completed.stderr == ""
