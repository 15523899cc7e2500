"""Jobs: exit codes, restarts, signals, and that no child outlives its parent."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chatbot.errors import EXIT_LOST
from chatbot.training.machines.processes import Job, run_jobs
from tests.training.machines.jobs import RUN_SECONDS, end_with, run_for
from tests.training.machines.running import Command, kill, module, running_processes, until

JOBS = "tests.training.machines.jobs"
# With the exit code of a run that each has ended.
SIGNALS = pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGUSR1, EXIT_LOST)]
)


def starts() -> int:
    """The number of times the job was started."""
    return int(Path("starts").read_text())


@pytest.mark.parametrize(
    ("codes", "restarts", "expected", "started"),
    [
        ((0,), 3, 0, 1),
        ((1,), 3, 1, 1),  # a bug, which a restart does not fix
        ((2,), 3, 2, 1),
        ((130,), 3, 130, 1),  # Ctrl-C
        ((138, 0), 3, 0, 2),
        ((-9, 138, 0), 2, 0, 3),
        ((-9,), 2, 137, 3),
        ((138,), 1, 138, 2),
        ((138,), 0, 138, 1),
    ],
)
def test_only_lost_processes_are_restarted(
    pairs_folder: Path, codes: tuple[int, ...], restarts: int, expected: int, started: int
) -> None:
    assert run_jobs([Job("training", end_with, codes, restarts)], restart_delay=0.1) == expected
    assert starts() == started


def test_each_restart_is_printed(pairs_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_jobs([Job("worker 1", end_with, (138, -9), 1)], restart_delay=0.1) == 137
    assert capsys.readouterr().err.split("\n") == [
        "",
        "worker 1 ended with exit code 138; starting it again (1 of 1).",
        "",
        "error: worker 1 was killed by signal 9",
        "",
    ]


def test_servers_end_with_other_jobs(pairs_folder: Path) -> None:
    jobs = [
        Job("ps 0", run_for, server=True),
        Job("worker 0", end_with, (-9,), 2, server=True),
        Job("chief", run_for, (3,)),
    ]
    assert run_jobs(jobs) == 0
    assert starts() == 3  # restarted twice without delay; then the chief continues without it


def test_other_jobs_get_time_to_end_after_failure(pairs_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatbot.training.machines.processes.EXIT_TIMEOUT", 2.0)
    start = time.monotonic()
    assert run_jobs([Job("one", run_for), Job("other", end_with, (138,))]) == 138
    assert 2 < time.monotonic() - start < RUN_SECONDS / 2


@pytest.mark.parametrize(
    ("jobs", "code", "printed"),
    [
        ("failing", 2, ["error: the file is missing"]),  # the same for all jobs, once
        ("losing", EXIT_LOST, ["error: GPU 0 does not answer", "error: GPU 1 does not answer"]),
    ],
)
def test_errors_of_jobs_are_printed(pairs_folder: Path, jobs: str, code: int, printed: list[str]) -> None:
    command = module(JOBS, jobs)
    assert command.wait() == code
    assert sorted(command.output.splitlines()) == printed


@SIGNALS
@pytest.mark.parametrize("to_all", [False, True])
def test_signals_are_forwarded_to_jobs(pairs_folder: Path, number: int, code: int, to_all: bool) -> None:
    """Also if all processes have got them, as from systemd and Slurm; the server stays for the chief that saves."""
    command = module(JOBS, "training")
    command.wait_for("started")
    for pid in (command.process.pid, *(command.children() if to_all else ())):
        os.kill(pid, number)
    assert command.wait() == code
    assert Path("saved").read_text() == str(int(number))
    assert "ps 0" not in command.output
    until(lambda: not running_processes())


def test_signal_while_jobs_start_ends_all(pairs_folder: Path) -> None:
    """Sent to the whole process group, as a terminal does, right after the children have started."""
    command = module(JOBS, "starting")
    until(lambda: len(command.children()) == 2)
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.wait() == 130
    assert command.output == ""


def test_signal_before_restart_prevents_it(pairs_folder: Path) -> None:
    command = module(JOBS, "restarting")
    command.wait_for("starting it again")
    os.kill(command.process.pid, signal.SIGTERM)
    assert command.wait() == 130  # long before the restart
    assert starts() == 1


def interrupt_twice(command: Command) -> None:
    """Two signals, while the children handle none."""
    os.kill(command.process.pid, signal.SIGSTOP)
    for child in command.children():
        os.kill(child, signal.SIGSTOP)
    os.kill(command.process.pid, signal.SIGCONT)
    os.kill(command.process.pid, signal.SIGINT)
    time.sleep(0.5)
    os.kill(command.process.pid, signal.SIGTERM)


@pytest.mark.parametrize(
    "end", [interrupt_twice, lambda command: kill(command.process.pid)], ids=["two signals", "kill -9"]
)
def test_no_child_outlives_its_parent(pairs_folder: Path, end: Callable[[Command], None]) -> None:
    command = module(JOBS, "training")
    command.wait_for("started")
    assert len(command.children()) == 2
    end(command)
    command.wait()
    until(lambda: not running_processes())
