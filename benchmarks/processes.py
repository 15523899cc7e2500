"""Programs and workers that are measured: their time, and the memory of the process that is asked for.

getrusage also counts, as the peak of a spawned process, that of the process that spawned it, since Linux keeps it
across execve; and of all children, the largest one alone. So memory is read in /proc.
"""

import multiprocessing
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.benchmark import ROOT, log
from chatbot.errors import UserError


class Ended(NamedTuple):
    """A program that has ended. output: both of its streams."""

    code: int | None  # None: it was ended because its time was over
    output: str
    seconds: float


def run(
    command: Sequence[object],
    folder: Path,
    stdin: str = "",
    seconds: float | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Ended:
    """Run a program in a folder. seconds: after which it is ended, however far it is. environment: its whole one."""
    path = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    began = time.perf_counter()
    process = subprocess.Popen(
        [*map(str, command)],
        cwd=folder,
        env={**environment, "PYTHONPATH": path},
        encoding="utf-8",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output = process.communicate(stdin, seconds)[0]
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        output = process.communicate()[0]
        code = None
    finally:
        process.kill()  # does nothing to a process that has ended
    return Ended(code, output, time.perf_counter() - began)


def output_of(command: Sequence[object], folder: Path, **options: Any) -> str:
    """Run a program as `run` does, and return its output. Raises UserError if it fails."""
    ended = run(command, folder, **options)
    if ended.code:
        words = [word.name if isinstance(word, Path) else str(word) for word in (Path(str(command[0])), *command[1:3])]
        name = " ".join(words)
        raise UserError(f"{name[:60]}: exit code {ended.code}: {last_error(ended.output)[:120]}")
    return ended.output


def python(*arguments: object) -> list[object]:
    """Return the command that runs Python with these arguments."""
    return [sys.executable, *arguments]


def last_error(output: str) -> str:
    """Return the last line of an output that speaks of an error, or else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    return next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])


class Worker:
    """A spawned process. It calls make(*arguments) once; the function that this returns answers each request."""

    def __init__(self, make: Callable[..., Callable[..., Any]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, remote = context.Pipe()
        self._process = context.Process(target=_serve, args=(remote, make, arguments))  # which may have children
        self._process.start()
        remote.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.join()

    def send(self, *request: Any) -> None:
        """Send a request without waiting for the answer."""
        self._connection.send(request)

    def receive(self) -> Any:
        """Wait for the answer. Raises RuntimeError when the process has ended."""
        try:
            return self._connection.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError("a measured process ended; its error is printed above") from None

    def ask(self, *request: Any) -> Any:
        """Send a request and wait for the answer."""
        return ask_all([self], *request)[0]


def ask_all(workers: Sequence[Worker], *request: Any) -> list[Any]:
    """Send a request to all workers at the same time. Returns their answers in order."""
    for worker in workers:
        worker.send(*request)
    return [worker.receive() for worker in workers]


def _serve(connection: Any, make: Callable[..., Callable[..., Any]], arguments: tuple[Any, ...]) -> None:
    answer = make(*arguments)
    while True:
        connection.send(answer(*connection.recv()))


def peak_gb() -> float:
    """Return the peak resident memory of this process in GB."""
    return _kilobytes("self/status", "VmHWM:") / 1e6


def memory_gb(process: int | str = "self") -> float:
    """Return the memory of a process and its descendants in GB; what several of them share is counted once."""
    try:
        tasks = Path(f"/proc/{process}/task").iterdir()
        children = [child for task in tasks for child in (task / "children").read_text().split()]
        own = _kilobytes(f"{process}/smaps_rollup", "Pss:") / 1e6
    except OSError:  # it has ended
        return 0.0
    return own + sum(map(memory_gb, children))


def _kilobytes(file: str, name: str) -> float:
    lines = Path("/proc", file).read_text().splitlines()
    return next(int(line.split()[1]) * 1.024 for line in lines if line.startswith(name))


class Samples:
    """The values of a function, called in a thread once at the start, and again after each interval of seconds."""

    def __init__(self, read: Callable[[], Any], interval: float = 0.2) -> None:
        self.values: list[Any] = []
        self._read, self._interval, self._ended = read, interval, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Samples":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        self.values.append(self._read())
        while not self._ended.wait(self._interval):
            self.values.append(self._read())


class Turns(NamedTuple):
    """What was measured in turns. failures: by name, why a function gave no value; it has no rate."""

    rates: dict[str, dict[str, float]]
    failures: dict[str, str]


def in_turns(measures: Mapping[str, Callable[[], float]], rounds: int) -> Turns:
    """Call every function once in each round. Returns the median, the lowest and the highest value of each.

    A function that raises UserError or RuntimeError is called no more: a precision that a machine lacks ends nothing.
    """
    values: dict[str, list[float]] = {name: [] for name in measures}
    failures: dict[str, str] = {}
    for number in range(rounds):
        for name in [name for name in measures if name not in failures]:
            try:
                values[name].append(measures[name]())
                log(f"round {number + 1}, {name}: {values[name][-1]:,.1f}")
            except (UserError, RuntimeError) as error:
                failures[name] = str(error)
                log(f"round {number + 1}, {name}: {error}")
    return Turns({name: spread(values[name]) for name in measures if name not in failures}, failures)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the lowest and the highest value."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
