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
from multiprocessing import resource_tracker
from typing import Any

from tqdm import tqdm

from chatbot.errors import UserError, exit_code_of
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
    arguments: tuple[Any, ...] = ()
    restarts: int = 0
    quiet: bool = False
    server: bool = False


def run_jobs(jobs: Sequence[Job], pause: float = PAUSE) -> int:
    """Run the jobs until all that are no servers have ended; returns the first of their exit codes that is not 0.

    Exit code 2, of a server too, is for the user to mend: all are ended. pause: seconds before a lost process starts
    again.
    """
    left = {job: job.restarts for job in jobs}
    due = dict.fromkeys(jobs, 0.0)  # when each is to start
    running: dict[Job, Any] = {}
    failed, deadline, told = 0, float("inf"), False
    may_speak, speech = multiprocessing.Pipe(duplex=False)
    speech.send_bytes(b"")  # see _child
    with interrupts(announced=False) as received, _ended(running):
        while not all(job.server for job in (*running, *due)):
            if received and not told:
                told = True
                for job, process in running.items():
                    if not job.server and process.is_alive():
                        os.kill(process.pid, received[0])
            if received or failed:
                due.clear()
            for job in [job for job, at in due.items() if at <= time.monotonic()]:
                del due[job]
                running[job] = _start(job, may_speak)
            multiprocessing.connection.wait([p.sentinel for p in running.values()], timeout=0.2)
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
                    due[job] = time.monotonic() + (0 if job.server else pause)
                elif code == 2:
                    return failed or 2
                elif job.server:
                    say(f"\n{job.name} {how}.")
                elif code and not failed:
                    failed = code if code > 0 else 130 if received else 128 - code
                    deadline = time.monotonic() + GRACE
                    if code < 0 and not received:
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


def _start(job: Job, may_speak: Any) -> Any:
    process = multiprocessing.get_context("spawn").Process(target=_child, args=(job, may_speak), name=job.name)
    resource_tracker.ensure_running()  # else the start does it, and unblocks signals while at it
    # The child takes its own process group before it hears a Ctrl-C; the parent hands signals on.
    blocked = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    return process


def _child(job: Job, may_speak: Any) -> None:
    """Be the job. may_speak: of several that fail alike, such as for want of a file, the first to read it says so."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a Ctrl-C that came since ends it; Python's own would be a traceback
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Bars of this process only. Theirs by default is a semaphore, reported as leaked when the process ends at once.
    tqdm.set_lock(threading.RLock())
    if job.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def target() -> int:
        try:
            return job.target(*job.arguments)
        except (UserError, OSError):
            may_speak.recv_bytes()  # the others wait here until they are ended
            raise

    sys.exit(exit_code_of(target))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
