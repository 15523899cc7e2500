"""Asynchronous training in several processes: each step is applied once, even when processes are killed."""

import json
import os
import random
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from chatbot.training.machines.cluster import free_addresses
from tests.training.attempts import metrics, saved_step, weights
from tests.training.machines.running import (
    Command,
    kill,
    preloaded,
    running_processes,
    train,
    train_overflowing,
    until,
    write_pairs,
)

KILLS = 3
LOCAL = ("--asynchronous", "--batch-size", "6", "--save-every", "20")


def steps_counted() -> int:
    """The number of steps that the counting cluster has scheduled."""
    return int(Path("steps").read_text() or 0) if Path("steps").exists() else 0


@pytest.mark.slow
def test_every_step_is_applied_exactly_once_when_workers_are_killed(pairs_folder: Path) -> None:
    """At random times, also while they start; once both at the same time."""
    command = preloaded("tests.training.machines.counting")
    until(lambda: steps_counted() > 40 or command.process.poll() is not None, lambda: command.output)
    ps_0, ps_1, *_, chief = command.children()
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)

    def workers() -> list[int]:
        return sorted(set(command.children()) - {ps_0, ps_1, chief})

    for i in range(KILLS):
        until(workers, lambda: command.output)  # those that were killed may not have started again
        alive = workers()
        for worker in alive if i == 1 else [rng.choice(alive)]:
            kill(worker)
        time.sleep(rng.uniform(0.2, 4))
    reached = steps_counted()
    until(lambda: steps_counted() > reached + 200 or command.process.poll() is not None, lambda: command.output)
    Path("stop").touch()
    assert command.wait() == 0, command.output
    counts = json.loads(Path("counts.json").read_text())
    print(counts, command.output.count("starting it again"))
    assert command.output.count("starting it again") >= KILLS
    assert min(counts["weights"]) > 1  # so that a dying worker could update a part of them
    assert counts["updates"] == [counts["steps"]] * 2
    assert counts["results"] == counts["steps"]
    assert abs(counts["smallest_decrease"] - counts["steps"]) < 0.5
    assert abs(counts["largest_decrease"] - counts["steps"]) < 0.5


def wait_for_checkpoint(attempt: str, command: Command, after: int = 0) -> None:
    """Wait for a checkpoint of a later step than `after`."""
    until(lambda: saved_step(attempt) > after or command.process.poll() is not None, lambda: command.output)
    assert command.process.poll() is None, command.output


@pytest.mark.slow
def test_lost_server_ends_the_run_and_a_lost_worker_of_the_resumed_one_is_restarted(pairs_folder: Path) -> None:
    """The loss of one pair overflows: one update in each epoch of four steps is skipped. At last a Ctrl-C saves."""
    flags = (*LOCAL, "--steps", "100000", "--attempt", "lost")
    lost = train_overflowing(*flags)
    wait_for_checkpoint("lost", lost)
    kill(lost.children()[0])
    assert lost.wait() == 138
    assert re.search(r"error: ps 0 \(127.0.0.1:\d+\) was lost, and with it the newest weights", lost.output)
    until(lambda: not running_processes())
    step = saved_step("lost")

    resumed = train_overflowing(*flags)
    wait_for_checkpoint("lost", resumed, step)
    *_, worker, _ = resumed.children()
    kill(worker)
    resumed.wait_for("worker 1 was killed by signal 9; starting it again (1 of 20).")
    wait_for_checkpoint("lost", resumed, saved_step("lost"))
    os.kill(resumed.process.pid, signal.SIGINT)
    assert resumed.wait() == 130
    assert f"Resuming from step {step} of checkpoints/lost." in resumed.output
    assert "Saved. The same command resumes from here" in resumed.output
    last = metrics("lost")[-1]
    assert saved_step("lost") == last["step"] > step
    assert len(last["tower_losses"]) == 2
    # Without steps whose results the lost chief had not read.
    assert 0 < last["skipped_updates"] <= last["step"] // 4 + 1
    assert all(command.output.count("the update was skipped") == 1 for command in (lost, resumed))
    assert all(np.isfinite(value).all() for value in weights("lost"))
    until(lambda: not running_processes())


@pytest.mark.slow
def test_separately_started_processes_end_with_the_chief(pairs_folder: Path) -> None:
    """A cluster with one worker."""
    write_pairs(Path("held-out.tsv"), 6, "is")
    ps, worker, chief = free_addresses(3)
    shared = (*LOCAL, "--ps-hosts", ps, "--worker-hosts", worker, "--chief-host", chief)
    chief_process = train(
        *(*shared, "--job-name", "chief", "--validation", "held-out.tsv", "--validate-every", "10"),
        *("--steps", "30"),
    )
    others = [train(*shared, "--job-name", job, "--task-index", "0") for job in ("worker", "ps")]
    assert chief_process.wait() == 0
    assert "Asynchronous training on 1 worker; 1 parameter server." in chief_process.output
    assert "step 30 was the last one" in chief_process.output
    for command, name, address in zip(others, ("worker", "ps"), (worker, ps), strict=True):
        assert command.wait() == 0
        assert f"{name} 0 is listening on {address}." in command.output
        assert "The chief has exited." in command.output
