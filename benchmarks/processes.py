"""Runs programs and worker processes, and measures their time and memory.

Memory is read from /proc. getrusage would be wrong, because it attributes the peak memory of a parent to its child.
"""

import multiprocessing
import os
import signal
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
    """The exit code, the output and the duration of a program."""

    code: int | None  # None after a timeout
    output: str  # standard output and standard error
    seconds: float


def run(
    command: Sequence[object],
    folder: Path,
    stdin: str = "",
    seconds: float | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Ended:
    """Run a program. After a timeout, kill it and the processes that it has started.

    Args:
        command: The program and its arguments.
        folder: The working directory.
        stdin: The text for standard input.
        seconds: The timeout in seconds; None for no timeout.
        environment: The environment variables.
    """
    path = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    began = time.perf_counter()
    with subprocess.Popen(
        [*map(str, command)],
        cwd=folder,
        env={**environment, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        code = None
        try:
            output, _ = process.communicate(stdin.encode(), seconds)
            code = process.returncode
        except subprocess.TimeoutExpired as expired:
            output = expired.output or b""
        finally:
            if code is None:  # also after Ctrl-C
                os.killpg(process.pid, signal.SIGKILL)
    # The program can have been killed within a character.
    return Ended(code, output.decode(errors="replace"), time.perf_counter() - began)


def output_of(command: Sequence[object], folder: Path, **options: Any) -> str:
    """Run a program like `run`, and return its output. Raises UserError if the program fails."""
    ended = run(command, folder, **options)
    if ended.code:
        words = [word.name if isinstance(word, Path) else str(word) for word in (Path(str(command[0])), *command[1:3])]
        name = " ".join(words)
        raise UserError(f"{name[:60]}: exit code {ended.code}: {last_error(ended.output)[:120]}")
    return ended.output


def python(*arguments: object) -> list[object]:
    """Return a command that runs the current Python interpreter with these arguments."""
    return [sys.executable, *arguments]


def last_error(output: str) -> str:
    """Return the last output line that mentions an error, or the last line if there is none."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    return next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])


class Worker:
    """A separate process that answers requests.

    Args:
        make: A function that is called once in the process and returns the function that answers requests.
        arguments: The arguments of `make`.
    """

    def __init__(self, make: Callable[..., Callable[..., Any]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, remote = context.Pipe()
        # The process is not a daemon, because daemons cannot have child processes.
        self._process = context.Process(target=_serve, args=(remote, make, arguments))
        self._process.start()
        remote.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.join()

    def ask(self, *request: Any, seconds: float | None = None) -> Any:
        """Send a request and wait for the answer; see `ask_all`."""
        return ask_all([self], *request, seconds=seconds)[0]


def ask_all(workers: Sequence[Worker], *request: Any, seconds: float | None = None) -> list[Any]:
    """Send the same request to all workers at once, and return their answers in order.

    Args:
        workers: The workers.
        *request: The arguments of their functions.
        seconds: The timeout of each answer in seconds; None for no timeout.

    Raises:
        RuntimeError: If a worker process has ended, or does not answer in time.
    """
    try:
        for worker in workers:
            worker.connection.send(request)
        if seconds is not None and not all(worker.connection.poll(seconds) for worker in workers):
            raise RuntimeError(f"stopped after {seconds:.0f} s")
        return [worker.connection.recv() for worker in workers]
    except (EOFError, ConnectionError):
        raise RuntimeError("a measured process ended; see its error above") from None


def _serve(connection: Any, make: Callable[..., Callable[..., Any]], arguments: tuple[Any, ...]) -> None:
    answer = make(*arguments)
    while True:
        connection.send(answer(*connection.recv()))


def peak_gb() -> float:
    """Return the peak resident memory of this process in GB."""
    return _kilobytes("self/status", "VmHWM:") / 1e6


def memory_gb(process: int | str = "self") -> float:
    """Return the memory of a process and its descendants in GB, counting shared memory only once."""
    try:
        tasks = Path(f"/proc/{process}/task").iterdir()
        children = [child for task in tasks for child in (task / "children").read_text().split()]
        own = _kilobytes(f"{process}/smaps_rollup", "Pss:") / 1e6
    except OSError:  # the process has ended
        return 0.0
    return own + sum(map(memory_gb, children))


def _kilobytes(file: str, name: str) -> float:
    lines = Path("/proc", file).read_text().splitlines()
    return next(int(line.split()[1]) * 1.024 for line in lines if line.startswith(name))


class Samples:
    """Calls a function at regular intervals in a background thread, and collects its results.

    Args:
        read: The function.
        interval: The interval in seconds.
    """

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
    """The results of measurements that were run in alternation.

    Attributes:
        rates: The median, lowest and highest value of each successful measurement, by name.
        failures: The error message of each failed measurement, by name.
    """

    rates: dict[str, dict[str, float]]
    failures: dict[str, str]


def in_turns(measures: Mapping[str, Callable[[], float]], rounds: int) -> Turns:
    """Call all functions once per round, and summarise the values of each function.

    If a function raises UserError or RuntimeError, for example because of an unsupported precision, only this function
    is not called again.
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
    """Return the median, the lowest and the highest of the values."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
