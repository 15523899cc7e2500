"""Commands in the background. An environment variable marks the processes of a test, so that all can be listed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from tests.commands import ENVIRONMENT, command

# The environment variable of every process of a test; its value is the directory of the test.
MARKER = "CHATBOT_TEST_FOLDER"
SMALL = ("--rnn-size", "16", "--embedding-size", "8", "--vocabulary-size", "300")
# Seconds; generous, since the cores may be busy with other work.
TIMEOUT = 120.0


class Command:
    """A command that runs in the background and writes its output to a file."""

    started: ClassVar[list[Any]] = []

    def __init__(self, *arguments: str) -> None:
        self.log = Path(f"command-{time.monotonic_ns()}.log").absolute()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**ENVIRONMENT, MARKER: os.getcwd()},
                start_new_session=True,
            )
        self.started.append(self)

    @property
    def output(self) -> str:
        """Standard output and standard error so far; each update of the progress bar is a line."""
        return self.log.read_text(errors="replace").replace("\r", "\n")

    def wait_for(self, text: str, seconds: float = TIMEOUT) -> None:
        """Wait until the output contains a text."""
        until(lambda: text in self.output or self.process.poll() is not None, seconds, lambda: self.output)
        assert text in self.output, self.output

    def wait(self, seconds: float = TIMEOUT) -> int:
        """Wait until the command has ended; return its exit code."""
        until(lambda: self.process.poll() is not None, seconds, lambda: self.output)
        assert "Traceback" not in self.output, self.output
        return self.process.returncode

    def children(self) -> list[int]:
        """The processes that run jobs, oldest first; without multiprocessing's resource tracker."""
        children = []
        for pid in running_processes():
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if int(state[1]) == self.process.pid and b"spawn_main" in command_line:
                children.append((int(state[19]), pid))  # the start time, in clock ticks
        return [pid for _, pid in sorted(children)]


def train(*arguments: str, data: str = "pairs.tsv") -> Command:
    """Start train.py with a small model."""
    return Command(*command("train.py", "--data", data, *SMALL, *arguments))


def train_overflowing(*arguments: str) -> Command:
    """Start train.py with a small model and one pair whose loss overflows."""
    return module("tests.training.machines.overflowing", "--data", "pairs.tsv", *SMALL, *arguments)


def module(name: str, *arguments: str) -> Command:
    """Start a module of the tests."""
    return Command(sys.executable, "-m", name, *arguments)


def until(condition: Callable[[], Any], seconds: float, details: Callable[[], str] = lambda: "") -> None:
    """Wait until a condition is true. Fails after so many seconds, with details."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} seconds: {details()}"
        time.sleep(0.1)


def running_processes() -> list[int]:
    """The running processes that this test has started, directly or not."""
    marker, pids = f"{MARKER}={os.getcwd()}".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return pids


def kill(pid: int) -> None:
    """Send SIGKILL to a process if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def write_pairs(path: Path, count: int = 24, question: str = "what is") -> None:
    """Write numbered questions with answers of two lengths."""
    lines = [f"{question} {i}\tit is {i * 7 % 10}" + " and a few words more" * (i % 2) for i in range(count)]
    path.write_text("".join(f"{line}\n" for line in lines))
