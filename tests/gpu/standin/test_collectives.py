"""NCCL between stand-in GPUs, and TensorFlow's ring between processes that have some."""

import json
import queue
import subprocess
import sys
import threading

import pytest

from chatbot.training.machines.cluster import free_addresses
from tests.gpu import standin
from tests.gpu.process import ROOT

HANGS = 3  # seconds
LIMIT = 100  # seconds for a process that does not hang

pytestmark = pytest.mark.gpu


class Process:
    """A process of `collectives.py`, which ends with the context."""

    def __init__(self, gpus: int, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.standin.collectives", *arguments],
            cwd=ROOT,
            env=standin.environment(gpus),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._findings: queue.Queue[tuple[str, bool]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> "Process":
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()
            self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._findings.put(tuple(json.loads(line)))
        self._findings.put(("the process goes on", False))

    def finding(self, timeout: float = LIMIT) -> str:
        """Return the name of the next finding, which must hold. Raises queue.Empty without one."""
        name, holds = self._findings.get(timeout=timeout)
        assert holds, name
        return name

    def tell(self, line: str) -> None:
        """Write a line to the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()


def test_collectives_of_one_process() -> None:
    """Results are equal to the bit on all GPUs; two sums that wait for each other hang."""
    with Process(4, "one_process") as process:
        found = {process.finding()}
        while "began" not in found:
            found.add(process.finding())
        with pytest.raises(queue.Empty):
            process.finding(HANGS)
    assert len(found) == 2 * 5 * 5 + 3 + 2 + 2 + 2 + 1 + 3 * 7 + 1 + 2


def test_sums_of_two_processes_with_two_gpus_each() -> None:
    with Process(2, "one_of_two_processes", "0") as first, Process(2, "one_of_two_processes", "1") as second:
        for process in (first, second):
            assert process.finding() == "started"
        addresses = " ".join(free_addresses(2))  # a port stays free for a moment only
        for process in (first, second):
            process.tell(addresses)
        for process in (first, second):
            found = [process.finding() for _ in range(6)]
            assert found == ["replicas", "sum of 1", "sum of 1000", "sum of 1000003", "broadcast", "hint nccl"]
