"""Windows and macOS, simulated: the parts of Python that they lack are removed."""

from pathlib import Path

import pytest

from chatbot.attempts.settings import train_settings
from chatbot.errors import UserError
from chatbot.training import start
from tests.commands import python

# Removes functions that only Linux or only POSIX has.
REMOVE_POSIX = """
import os, signal, sys
for module, names in {
    os: ["fork", "getpgid", "getuid", "killpg", "sched_getaffinity", "setpgid", "setpgrp", "setsid"],
    signal: ["SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGUSR1"]
    + ["SIG_BLOCK", "SIG_UNBLOCK", "alarm", "pthread_sigmask"],
}.items():
    for name in names:
        delattr(module, name)
sys.modules.update(dict.fromkeys(["fcntl", "readline", "resource", "pwd", "grp"]))
"""


@pytest.mark.slow
def test_one_machine_trains_and_chats_without_posix_functions(work_dir: Path) -> None:
    Path("pairs.tsv").write_text("你好\t你好呀\n早上好\t早\n", encoding="utf-8")
    sizes = ["--rnn-size", "8", "--embedding-size", "8", "--steps", "2"]
    for name, *arguments in (("train", "--data", "pairs.tsv", *sizes), ("chat",)):
        run = f"chatbot.commands.main({name!r})"
        code = f"{REMOVE_POSIX}import chatbot.commands; sys.argv[1:] = {arguments}; sys.exit({run})"
        completed = python(code, stdin="你好\n")
        assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--local-workers", "2"],
        ["--asynchronous"],
        ["--restarts", "1"],
        ["--worker-hosts", "localhost:2222,localhost:2223", "--task-index", "0"],
    ],
)
def test_several_processes_are_refused_on_windows(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    monkeypatch.setattr(start, "WINDOWS", True)
    with pytest.raises(UserError, match=r"^not supported on Windows: leave out --local-workers, --asynchronous"):
        start.start(train_settings(flags))
