"""Processes that do next to nothing: `python -m tests.training.machines.jobs NAME` runs some of them as jobs."""

import os
import sys
import time
from pathlib import Path

from chatbot.errors import UserError, exit_code_of
from chatbot.training.interrupts import interrupts
from chatbot.training.machines.processes import Job, run_jobs


def end_with(*codes: int) -> int:
    """End with the next of these codes each time it is started; one below zero is the signal that kills it."""
    place = Path(f"started-{os.environ.get('NAME', '')}")
    count = len(place.read_text()) if place.exists() else 0
    place.write_text("x" * (count + 1))
    code = codes[min(count, len(codes) - 1)]
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def stay(seconds: float = 300) -> int:
    """Stay until killed."""
    time.sleep(seconds)
    return 0


def fail_alike() -> int:
    """What the user can mend."""
    raise UserError("the file is not there")


def save_when_told() -> int:
    """As training does."""
    with interrupts() as received:
        print("trains", flush=True)
        while not received:
            time.sleep(0.05)
        Path("saved").write_text(str(received[0]))
    return 130


JOBS = {
    "training": [Job("ps 0", stay, server=True), Job("chief", save_when_told)],
    "starting": [Job("worker 0", stay), Job("worker 1", stay)],
    "restarting": [Job("worker 0", end_with, (-9,), 1), Job("worker 1", stay)],
    "alike": [Job(f"worker {i}", fail_alike, quiet=i > 0) for i in range(3)],
}

if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: run_jobs(JOBS[sys.argv[1]], pause=5.0)))
