"""Short jobs for tests of `run_jobs`; `python -m tests.training.machines.jobs NAME` runs a list of them."""

import os
import sys
import time
from pathlib import Path

from chatbot.errors import LostError, UserError, exit_code_of
from chatbot.training.machines.processes import Job, run_jobs
from chatbot.training.watch import interrupts

RUN_SECONDS = 600.0


def end_with(*codes: int) -> int:
    """End with the next of these exit codes at each start; a negative code is a signal that kills the process."""
    starts = Path("starts")
    count = int(starts.read_text()) if starts.exists() else 0
    starts.write_text(str(count + 1))
    code = codes[min(count, len(codes) - 1)]
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def run_for(seconds: float = RUN_SECONDS) -> int:
    """Run for so many seconds, by default until killed."""
    time.sleep(seconds)
    return 0


def fail() -> int:
    """Raise an error that the user can fix."""
    raise UserError("the file is missing")


def lose_device(number: int) -> int:
    """Raise the error of a device that has failed."""
    raise LostError(f"GPU {number} does not answer")


def save_at_signal() -> int:
    """Write the signal that ends the job, as training writes a checkpoint."""
    with interrupts() as received:
        print("started", flush=True)
        while not received:
            time.sleep(0.05)
        time.sleep(1)  # as a step takes, while the supervisor forwards the signal
        Path("saved").write_text(str(received.number))
    return received.exit_code


JOBS = {
    "training": [Job("ps 0", run_for, server=True), Job("chief", save_at_signal)],
    "starting": [Job("worker 0", run_for), Job("worker 1", run_for)],
    "restarting": [Job("worker 0", end_with, (-9,), 1), Job("worker 1", run_for)],
    "losing": [Job(f"worker {i}", lose_device, (i,)) for i in range(2)],
    "failing": [Job(f"worker {i}", fail, quiet=i > 0) for i in range(3)],
}

if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: run_jobs(JOBS[sys.argv[1]], restart_delay=RUN_SECONDS)))
