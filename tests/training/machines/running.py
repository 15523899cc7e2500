"""Commands in the background. An environment variable marks the processes of a test, so that all can be found."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tests.commands import ENVIRONMENT, command

# Set for every process of a test, to the folder of the test.
MARKER = "CHATBOT_TEST_FOLDER"
SMALL = ("--rnn-size", "16", "--embedding-size", "8", "--vocabulary-size", "50")
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
        found = []
        for pid in running_processes():
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if int(state[1]) == self.process.pid and b"spawn_main" in command_line:
                found.append((int(state[19]), pid))  # the start time, in clock ticks
        return [pid for _, pid in sorted(found)]


def train(*arguments: str, data: str = "pairs.tsv") -> Command:
    """Start train.py with a small model."""
    return Command(*command("train.py", "--data", data, *SMALL, *arguments))


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
    marker, found = f"{MARKER}={os.getcwd()}".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return found


def kill(pid: int) -> None:
    """Send SIGKILL to a process if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def write_pairs(path: Path, count: int = 24, question: str = "what is") -> None:
    """Write numbered questions with answers of two lengths."""
    lines = [f"{question} {i}\tit is {i * 7 % 10}" + " and a few words more" * (i % 2) for i in range(count)]
    path.write_text("".join(f"{line}\n" for line in lines))


def metrics(attempt: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; none before the first."""
    path = Path("checkpoints", attempt, "metrics.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def saved_step(attempt: str) -> int:
    """The step of the last checkpoint; 0 before the first."""
    path = Path("checkpoints", attempt, "last")
    return int(json.loads(path.read_text())["step"]) if path.exists() else 0


def weights(attempt: str) -> list[np.ndarray]:
    """All weights and slots in the last checkpoint."""
    folder = Path("checkpoints", attempt)
    reader = tf.train.load_checkpoint(str(folder / json.loads((folder / "last").read_text())["checkpoint"]))
    names = sorted(n for n in reader.get_variable_to_shape_map() if n.endswith("VARIABLE_VALUE"))
    return [reader.get_tensor(name) for name in names]
