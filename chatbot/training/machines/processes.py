"""Child processes of a run on this machine. The parent forwards signals and restarts them, and they end with it."""

import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing import resource_tracker
from typing import Any

from tqdm import tqdm

from chatbot.corpus.workers import end_with_parent
from chatbot.errors import LostError, UserError, exit_code_of
from chatbot.training.machines.peers import print_status
from chatbot.training.watch import interrupts

# Seconds before a lost process restarts, in which the other processes detect its loss.
RESTART_DELAY = 8.0
# Seconds after a failure without restart, in which the other processes detect it and end.
EXIT_TIMEOUT = 60.0


@dataclasses.dataclass(frozen=True)
class Job:
    """A process to run.

    restarts: how often it starts again after it was killed, or lost another process. quiet: discard standard output.
    server: it serves the others, and ends with them.
    """

    name: str
    target: Callable[..., int]
    arguments: tuple[Any, ...] = ()
    restarts: int = 0
    quiet: bool = False
    server: bool = False


def run_jobs(jobs: Sequence[Job], restart_delay: float = RESTART_DELAY) -> int:
    """Run the jobs until all but servers have ended; return the first exit code that is not 0, or 0.

    Exit code 2 of any job, an error that the user can fix, ends all. restart_delay: seconds before a lost process,
    other than a server, starts again.
    """
    restarts_left = {job: job.restarts for job in jobs}
    start_times = dict.fromkeys(jobs, 0.0)  # of the jobs that are not running
    running: dict[Job, Any] = {}
    exit_code = 0
    deadline = float("inf")
    forwarded = False
    error_token, token_sender = multiprocessing.Pipe(duplex=False)
    token_sender.send_bytes(b"")  # see _child
    with interrupts(announced=False) as received, ExitStack() as stack:
        stack.callback(lambda: [process.kill() for process in running.values()])
        while not all(job.server for job in (*running, *start_times)):
            if received and not forwarded:
                forwarded = True
                for job, process in running.items():
                    if not job.server:  # one that has ended waits to be looked at below, so its number is still its own
                        os.kill(process.pid, received.number)
            if received or exit_code:
                start_times.clear()
            for job in [job for job, start_time in start_times.items() if start_time <= time.monotonic()]:
                del start_times[job]
                running[job] = _start(job, error_token)
            multiprocessing.connection.wait([p.sentinel for p in running.values()], timeout=0.2)
            if time.monotonic() > deadline:
                return exit_code
            for job, code in [(job, process.exitcode) for job, process in running.items()]:
                if code is None:
                    continue
                del running[job]
                ending = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                may_restart = (code < 0 or code > 130) and not received and not exit_code
                if may_restart and restarts_left[job]:
                    restarts_left[job] -= 1
                    count = f"{job.restarts - restarts_left[job]} of {job.restarts}"
                    print_status(f"\n{job.name} {ending}; starting it again ({count}).")
                    start_times[job] = time.monotonic() + (0 if job.server else restart_delay)
                elif code == 2:
                    return exit_code or 2
                elif job.server:
                    print_status(f"\n{job.name} {ending}.")
                elif code and not exit_code:
                    exit_code = code if code > 0 else received.exit_code if received else 128 - code
                    deadline = time.monotonic() + EXIT_TIMEOUT
                    if code < 0 and not received:
                        print_status(f"\nerror: {job.name} {ending}")
    return exit_code


def _start(job: Job, error_token: Any) -> Any:
    process = multiprocessing.get_context("spawn").Process(target=_child, args=(job, error_token), name=job.name)
    resource_tracker.ensure_running()  # otherwise process.start() starts it, and unblocks the signals
    # The child moves to a new process group before it can receive a Ctrl-C; the parent forwards signals.
    blocked = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    return process


def _child(job: Job, error_token: Any) -> None:
    """Run the job in the child process.

    error_token: a pipe with a single message: of several jobs that fail for the same reason, the one that reads it
    prints the error.
    """
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would print a traceback for a Ctrl-C until now
    if not job.server:  # which a signal to all processes of a run must not end before its weights are saved
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1})
    end_with_parent()
    # tqdm's default lock is a semaphore between processes, reported as leaked when the process is killed.
    tqdm.set_lock(threading.RLock())
    if job.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def target() -> int:
        try:
            return job.target(*job.arguments)
        except LostError:
            raise  # of this process alone
        except (UserError, OSError):
            error_token.recv_bytes()  # blocks in all jobs but the first, until the parent kills them
            raise

    sys.exit(exit_code_of(target))
