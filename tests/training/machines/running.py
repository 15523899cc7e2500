"""Commands in the background, in a folder of the test's own; whatever they started is found by a mark and ended."""

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

# In the environment of every process of a test; its value is the test's folder.
MARK = "CHATBOT_TEST_FOLDER"
SMALL = ("--rnn-size", "16", "--embedding-size", "8", "--vocabulary-size", "50")
# Two cores may be shared with other work: patience only, nothing is slower for it.
PATIENCE = 120.0


class Command:
    """A command that runs in the background; what it says goes to a file."""

    started: ClassVar[list[Any]] = []

    def __init__(self, *words: str) -> None:
        self.log = Path(f"command-{time.monotonic_ns()}.log").absolute()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**ENVIRONMENT, MARK: os.getcwd()},
                start_new_session=True,
            )
        self.started.append(self)

    @property
    def said(self) -> str:
        """All so far, the bar's rewritten lines as lines of their own."""
        return self.log.read_text(errors="replace").replace("\r", "\n")

    def wait_for(self, words: str, seconds: float = PATIENCE) -> None:
        """Wait until it has said these words."""
        until(lambda: words in self.said or self.process.poll() is not None, seconds, lambda: self.said)
        assert words in self.said, self.said

    def ended(self, seconds: float = PATIENCE) -> int:
        """Wait until it has ended; returns its exit code."""
        until(lambda: self.process.poll() is not None, seconds, lambda: self.said)
        assert "Traceback" not in self.said, self.said
        return self.process.returncode

    def children(self) -> list[int]:
        """The processes that train, by age. Python's own helper of such processes is none of them."""
        found = []
        for pid in marked():
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if int(state[1]) == self.process.pid and b"spawn_main" in words:
                found.append((int(state[19]), pid))  # the time it started, in ticks
        return [pid for _, pid in sorted(found)]


def train(*arguments: str, data: str = "pairs.tsv") -> Command:
    """train.py with a small model."""
    return Command(*command("train.py", "--data", data, *SMALL, *arguments))


def module(name: str, *arguments: str) -> Command:
    """A module of the tests as a command."""
    return Command(sys.executable, "-m", name, *arguments)


def until(true: Callable[[], Any], seconds: float, why: Callable[[], str] = lambda: "") -> None:
    """Wait until something is true. Fails after so many seconds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:.0f} seconds: {why()}"
        time.sleep(0.1)


def marked() -> list[int]:
    """The processes that this test started and that they started in turn; none that has ended."""
    mark, found = f"{MARK}={os.getcwd()}".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


def kill(pid: int) -> None:
    """End a process at once, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def write_pairs(path: Path, count: int = 24, question: str = "what is") -> None:
    """Questions with a number each, and their answers, in two lengths."""
    lines = [f"{question} {i}\tit is {i * 7 % 10}" + " and a few words more" * (i % 2) for i in range(count)]
    path.write_text("".join(f"{line}\n" for line in lines))


def metrics(attempt: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
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
