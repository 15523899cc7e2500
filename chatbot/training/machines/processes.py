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

from tqdm import tqdm

from chatbot.errors import exit_code_of
from chatbot.training.interrupts import interrupts
from chatbot.training.machines.watch import say

# Before a lost process starts again, the others must have noticed.
PAUSE = 8.0
# When one process has failed for good, the others get so long to notice and end.
GRACE = 60.0


@dataclasses.dataclass(frozen=True)
class Job:
    """A process to run.

    restarts: how often it is started again after it was killed, or lost another process. quiet: only its errors are
    shown. server: it serves the others, and ends with them.
    """

    name: str
    target: Callable[..., int]
    arguments: tuple[Any, ...]
    restarts: int = 0
    quiet: bool = False
    server: bool = False


def run_jobs(jobs: Sequence[Job], pause: float = PAUSE) -> int:
    """Run the jobs until all that are no servers have ended; returns the first of their exit codes that is not 0.

    Exit code 2 is for the user to mend: all are ended. pause: seconds before a lost process starts again.
    """
    left = {job: job.restarts for job in jobs}
    running: dict[Job, Any] = {}
    failed, deadline, told = 0, float("inf"), 0
    with interrupts(announced=False) as received, _ended(running):
        running.update({job: _start(job) for job in jobs})
        while not all(job.server for job in running):
            multiprocessing.connection.wait([p.sentinel for p in running.values()], timeout=0.2)
            if len(received) > told:
                told = len(received)
                for job, process in running.items():
                    if not job.server and process.is_alive():
                        os.kill(process.pid, received[-1])
            if time.monotonic() > deadline:
                return failed
            for job, code in [(job, process.exitcode) for job, process in running.items()]:
                if code is None:
                    continue
                del running[job]
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                again = (code < 0 or code > 130) and not received and not failed
                if again and left[job]:
                    left[job] -= 1
                    count = f"{job.restarts - left[job]} of {job.restarts}"
                    say(f"\n{job.name} {how}; starting it again ({count}).")
                    if not job.server:
                        time.sleep(pause)
                    running[job] = _start(job)
                elif job.server:
                    say(f"\n{job.name} {how}.")
                elif code and not failed:
                    failed = code if code > 0 else 128 - code
                    deadline = time.monotonic() + (0 if code == 2 else GRACE)
                    if code < 0:
                        say(f"\nerror: {job.name} {how}")
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


def _child(job: Job) -> None:
    os.setpgrp()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Bars of this process only. Theirs by default is a semaphore, reported as leaked when the process ends at once.
    tqdm.set_lock(threading.RLock())
    if job.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(exit_code_of(lambda: job.target(*job.arguments)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
