"""Runs the child processes of a training run. The parent forwards signals to its children and restarts them."""

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

# Seconds before a lost process is restarted, so that the other processes can detect the loss.
RESTART_DELAY = 8.0
# Seconds within which the other processes must exit after one of them has failed.
EXIT_TIMEOUT = 60.0


@dataclasses.dataclass(frozen=True)
class Job:
    """A child process to run.

    Attributes:
        name: The name for messages.
        target: The function to run, which returns the exit code.
        arguments: The arguments of `target`.
        restarts: Maximum number of restarts after the process was killed or has lost a peer.
        quiet: Whether to discard standard output.
        server: Whether the process serves the other jobs, such as a parameter server. It ends when they have ended.
    """

    name: str
    target: Callable[..., int]
    arguments: tuple[Any, ...] = ()
    restarts: int = 0
    quiet: bool = False
    server: bool = False


def run_jobs(jobs: Sequence[Job], restart_delay: float = RESTART_DELAY) -> int:
    """Run the jobs until all of them except servers have ended, and return the first nonzero exit code, or 0.

    If a job ends with exit code 2, all jobs are ended, because this code means an error that the user can fix. A lost
    process is restarted after `restart_delay` seconds. A lost server is restarted immediately.
    """
    restarts_left = {job: job.restarts for job in jobs}
    start_times = dict.fromkeys(jobs, 0.0)  # the time at which to start each job that is not running
    running: dict[Job, Any] = {}
    exit_code = 0
    deadline = float("inf")
    forwarded = False
    error_token, token_sender = multiprocessing.Pipe(duplex=False)
    token_sender.send_bytes(b"")  # the job that receives this message may print its error; see `_child`
    with interrupts(announced=False) as received, ExitStack() as stack:
        stack.callback(lambda: [process.kill() for process in running.values()])
        while not all(job.server for job in (*running, *start_times)):
            if received and not forwarded:
                forwarded = True
                for job, process in running.items():
                    if not job.server:  # the pid is still valid, even if the process has just ended
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
    resource_tracker.ensure_running()  # process.start() would otherwise start it, which unblocks the signals
    # The parent forwards signals to the child. Signals are blocked until the child is in its own process group, because
    # it would otherwise receive a Ctrl-C twice.
    blocked = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    return process


def _child(job: Job, error_token: Any) -> None:
    """Run a job in the child process.

    If several jobs fail for the same reason, only one of them should print the error. Therefore, all jobs have the same
    pipe `error_token` with a single message, and only the job that receives the message prints its error.
    """
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would print a traceback
    if not job.server:  # servers must ignore signals until the chief has saved their weights
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1})
    end_with_parent()
    # If the process is killed, Python reports the semaphore in tqdm's default lock as leaked.
    tqdm.set_lock(threading.RLock())
    if job.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def target() -> int:
        try:
            return job.target(*job.arguments)
        except LostError:
            raise  # this error is specific to the process, so every process prints it
        except (UserError, OSError):
            error_token.recv_bytes()  # only the first job continues; the others wait until the parent kills them
            raise

    sys.exit(exit_code_of(target))
