"""Commands in the background. The processes of a test are those in its directory, so that all can be listed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from chatbot.training.machines.peers import connect_to
from tests.commands import ENVIRONMENT
from tests.training.machines.preloaded import Process

SMALL = ("--rnn-size", "16", "--embedding-size", "8", "--vocabulary-size", "300")
# The session of the tests, which a command is not in.
SESSION = os.getsid(0)
# Of every wait, in seconds: no test depends on the speed of the machine, so this only ends what hangs.
TIMEOUT = 240.0


class Command:
    """A command that runs in the background and writes its output to a file.

    preloaded: the first argument is train.py or a module, which runs in a process that has imported TensorFlow.
    """

    started: ClassVar[list[Any]] = []

    def __init__(self, *arguments: str, preloaded: bool = False) -> None:
        self.log = Path(f"command-{time.monotonic_ns()}.log").absolute()
        self.process: Any
        with self.log.open("wb") as log:
            if preloaded:
                self.process = Process(arguments[0], arguments[1:], self.log)
            else:
                self.process = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=ENVIRONMENT,
                    start_new_session=True,
                )
        self.started.append(self)

    @property
    def output(self) -> str:
        """Standard output and standard error so far; each update of the progress bar is a line."""
        return self.log.read_text(errors="replace").replace("\r", "\n")

    def wait_for(self, text: str) -> None:
        """Wait until the output contains a text."""
        until(lambda: text in self.output or self.process.poll() is not None, lambda: self.output)
        assert text in self.output, self.output

    def wait(self) -> int:
        """Wait until the command has ended; return its exit code."""
        until(lambda: self.process.poll() is not None, lambda: self.output)
        assert "Traceback" not in self.output, self.output
        return self.process.returncode

    def children(self) -> list[int]:
        """The processes that run jobs, oldest first; without multiprocessing's resource tracker."""
        children = []
        for pid in running_processes():
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
                command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue  # it has ended meanwhile
            if int(state[1]) == self.process.pid and b"resource_tracker" not in command_line:
                children.append((int(state[19]), pid))  # the start time, in clock ticks
        return [pid for _, pid in sorted(children)]


def train(*arguments: str, data: str = "pairs.tsv") -> Command:
    """Start train.py with a small model."""
    return Command("train.py", "--data", data, *SMALL, *arguments, preloaded=True)


def train_overflowing(*arguments: str) -> Command:
    """Start train.py with a small model and one pair whose loss overflows."""
    return preloaded("tests.training.machines.overflowing", "--data", "pairs.tsv", *SMALL, *arguments)


def preloaded(name: str, *arguments: str) -> Command:
    """Start a module of the tests that needs TensorFlow."""
    return Command(name, *arguments, preloaded=True)


def module(name: str, *arguments: str) -> Command:
    """Start a module of the tests."""
    return Command(sys.executable, "-m", name, *arguments)


def until(condition: Callable[[], Any], details: Callable[[], str] = lambda: "") -> None:
    """Wait until a condition is true. Fails with details after TIMEOUT."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, f"not within {TIMEOUT:.0f} seconds: {details()}"
        time.sleep(0.1)


def running_processes() -> list[int]:
    """The running processes that this test has started, directly or not."""
    folder, pids = os.getcwd(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd") == folder and os.getsid(int(entry.name)) != SESSION:
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


def is_listening(address: str) -> bool:
    """Return whether a process accepts connections at host:port; the operating system does so for a stopped one."""
    with connect_to(address) or contextlib.nullcontext() as connection:
        return connection is not None
