"""Training processes on this machine: as many as --local-workers, started again as often as --restarts.

The parent computes nothing. It hands signals on, and its children end with it, however it ends.
"""

import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from chatbot.errors import exit_code_of
from chatbot.training.interrupts import interrupts

# Before a lost process starts again, the others must have noticed.
PAUSE = 8.0
# When one process has failed for good, the others get so long to notice and end.
GRACE = 60.0


@dataclasses.dataclass(frozen=True)
class Job:
    """A process to run: its name and what it runs. Quiet ones print errors only."""

    name: str
    target: Callable[..., int]
    arguments: tuple[Any, ...]
    quiet: bool = False


def run_jobs(jobs: Sequence[Job], restarts: int) -> int:
    """Run all jobs until they end; returns the first exit code that is not 0.

    A job that is killed, or that lost another process, starts again, `restarts` times each. Exit code 2
    is for the user to mend: the others are ended.
    """
    left = dict.fromkeys(jobs, restarts)
    running = {job: _start(job) for job in jobs}
    failed, deadline, told = 0, float("inf"), 0
    with interrupts(announced=False) as received, _ended(running):
        while running:
            multiprocessing.connection.wait([p.sentinel for p in running.values()], timeout=0.2)
            if len(received) > told:
                told = len(received)
                for process in running.values():
                    _signal(process, received[-1])
            if time.monotonic() > deadline:
                for process in running.values():
                    process.kill()
            for job, process in list(running.items()):
                code = process.exitcode
                if code is None:
                    continue
                del running[job]
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                again = (code < 0 or code > 130) and not received and not failed
                if again and left[job]:
                    left[job] -= 1
                    count = f"{restarts - left[job]} of {restarts}"
                    print(f"\n{job.name} {how}; starting it again ({count}).", file=sys.stderr, flush=True)
                    time.sleep(PAUSE)
                    running[job] = _start(job)
                elif code and not failed:
                    failed = code if code > 0 else 128 - code
                    deadline = time.monotonic() + GRACE
                    if code < 0:
                        print(f"\nerror: {job.name} {how}", file=sys.stderr, flush=True)
                    if code == 2:
                        deadline = time.monotonic()
    return failed


@contextmanager
def _ended(running: dict[Job, Any]) -> Iterator[None]:
    """No child outlives its parent's interest in it."""
    try:
        yield
    finally:
        for process in running.values():
            process.kill()


def _start(job: Job) -> Any:
    process = multiprocessing.get_context("spawn").Process(target=_child, args=(job,), name=job.name)
    # The child takes its own process group before it hears a Ctrl-C; the parent hands signals on.
    blocked = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    return process


def _signal(process: Any, number: int) -> None:
    if process.is_alive():
        os.kill(process.pid, number)


def _child(job: Job) -> None:
    os.setpgrp()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if job.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(exit_code_of(lambda: job.target(*job.arguments)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
