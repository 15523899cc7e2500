"""Jobs: their exit codes, their restarts, and that none outlives its parent."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chatbot.training.machines.processes import Job, run_jobs
from tests.training.machines.jobs import end_with, stay
from tests.training.machines.running import Command, kill, marked, module, until

JOBS = "tests.training.machines.jobs"


def starts() -> int:
    """How often the job was started."""
    return len(Path("started-").read_text())


@pytest.mark.parametrize(
    ("codes", "restarts", "expected", "started"),
    [
        ((0,), 3, 0, 1),
        ((1,), 3, 1, 1),  # a bug: once more would be no better
        ((2,), 3, 2, 1),
        ((130,), 3, 130, 1),  # Ctrl-C was meant
        ((138, 0), 3, 0, 2),
        ((-9, 138, 0), 2, 0, 3),
        ((-9,), 2, 137, 3),
        ((138,), 1, 138, 2),
        ((138,), 0, 138, 1),
    ],
)
def test_who_is_started_again(place: Path, codes: tuple[int, ...], restarts: int, expected: int, started: int) -> None:
    assert run_jobs([Job("training", end_with, codes, restarts)], pause=0.1) == expected
    assert starts() == started


def test_restarts_are_counted_aloud(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_jobs([Job("worker 1", end_with, (138, -9), 1)], pause=0.1) == 137
    assert capsys.readouterr().err.split("\n") == [
        "",
        "worker 1 ended with exit code 138; starting it again (1 of 1).",
        "",
        "error: worker 1 was killed by signal 9",
        "",
    ]


@pytest.mark.parametrize("server", [False, True])
def test_what_the_user_must_mend_ends_all_at_once(place: Path, server: bool) -> None:
    began = time.monotonic()
    assert run_jobs([Job("one", stay), Job("other", end_with, (2,), 3, server=server)]) == 2
    assert time.monotonic() - began < 10


def test_servers_end_with_the_others(place: Path) -> None:
    jobs = [Job("ps 0", stay, server=True), Job("worker 0", end_with, (-9,), 2, server=True), Job("chief", stay, (3,))]
    assert run_jobs(jobs) == 0
    assert starts() == 3  # at once, and no more often than told: the chief goes on without it


def test_the_others_have_a_while_to_notice_that_one_is_gone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatbot.training.machines.processes.GRACE", 2.0)
    began = time.monotonic()
    assert run_jobs([Job("one", stay), Job("other", end_with, (138,))]) == 138
    assert 2 < time.monotonic() - began < 20


def test_a_failure_of_all_is_said_once(place: Path) -> None:
    command = module(JOBS, "alike")
    assert command.ended() == 2
    assert command.said == "error: the file is not there\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_handed_on(place: Path, number: int) -> None:
    command = module(JOBS, "training")
    command.wait_for("trains")
    os.kill(command.process.pid, number)
    assert command.ended() == 130
    assert Path("saved").read_text() == str(int(number))
    until(lambda: not marked(), 5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_there_is_anything_to_save(place: Path, number: int) -> None:
    """To the whole group, as a terminal does it, when the children are just there."""
    command = module(JOBS, "starting")
    until(lambda: len(command.children()) == 2, 20)
    os.killpg(command.process.pid, number)
    assert command.ended(10) == 130
    assert command.said == ""


def test_a_signal_while_a_job_waits_to_start_again(place: Path) -> None:
    command = module(JOBS, "restarting")
    command.wait_for("starting it again")
    began = time.monotonic()
    os.kill(command.process.pid, signal.SIGTERM)
    assert command.ended() == 130
    assert time.monotonic() - began < 4
    assert starts() == 1


def twice(command: Command) -> None:
    """Two Ctrl-C, the second while the first is heard."""
    os.kill(command.process.pid, signal.SIGSTOP)
    for child in command.children():
        os.kill(child, signal.SIGSTOP)  # a child that is deaf
    os.kill(command.process.pid, signal.SIGCONT)
    os.kill(command.process.pid, signal.SIGINT)
    time.sleep(0.5)
    os.kill(command.process.pid, signal.SIGINT)


@pytest.mark.parametrize("end", [twice, lambda command: kill(command.process.pid)], ids=["Ctrl-C twice", "kill -9"])
def test_no_child_outlives_its_parent(place: Path, end: Callable[[Command], None]) -> None:
    command = module(JOBS, "training")
    command.wait_for("trains")
    assert len(command.children()) == 2
    end(command)
    command.ended(10)
    until(lambda: not marked(), 3)
