"""Synchronous training in several processes: equality with one device, lost workers, signals and errors."""

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from chatbot.errors import EXIT_INTERRUPTED
from chatbot.training.machines.cluster import free_addresses
from tests.training.attempts import metrics, saved_step, weights
from tests.training.machines.overflowing import overflowing
from tests.training.machines.running import (
    SMALL,
    kill,
    running_processes,
    train,
    train_overflowing,
    until,
    write_pairs,
)
from tests.training.small_run import train_with_flags

# With Adam, and a gradient that is clipped at every step.
EXACT = ("--keep-prob", "1.0", "--batch-size", "10", "--max-gradient-norm", "0.01", "--log-every", "1")
EQUAL = ("--save-every", "5", "--precision", "float32", *EXACT)


def worker_flags(count: int = 2) -> list[tuple[str, ...]]:
    """The flags of each worker."""
    hosts = ",".join(free_addresses(count))
    return [("--worker-hosts", hosts, "--task-index", str(i)) for i in range(count)]


@pytest.mark.slow
def test_two_workers_with_two_towers_equal_one_device_after_lost_worker(
    pairs_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 1 starts late and is killed, and both resume; the final weights equal those of one device.

    The loss of one pair overflows: all skip the same update, one in each epoch of three steps.
    """
    shared = (*EQUAL, "--towers", "2", "--attempt", "two")
    flags = worker_flags()
    first = train_overflowing(*shared, *flags[0])
    first.wait_for("Waiting for worker 1")
    second = train_overflowing(*shared, *flags[1])
    second.wait_for("Synchronous training on 2 workers with 2 towers each.")
    waiting = re.findall(r"Waiting for worker 1 \((\S+)\): \d+ of at most 1,800 seconds", first.output)
    assert waiting == [flags[1][1].split(",")[1]], first.output
    until(lambda: saved_step("two") >= 5)
    kill(second.process.pid)
    killed = time.monotonic()
    assert first.wait() == 138
    print(f"noticed after {time.monotonic() - killed:.1f} seconds")
    assert f"error: worker 1 ({waiting[0]}) was lost; the last checkpoint is kept" in first.output

    step = saved_step("two")
    steps = step + 7
    resumed = [train_overflowing(*shared, *own, "--steps", str(steps)) for own in reversed(flags)]
    assert [command.wait() for command in resumed] == [0, 0]
    assert f"Resuming from step {step} of checkpoints/two." in resumed[1].output
    assert all(f"Stopped at step {steps}" in command.output for command in resumed)
    assert [command.output.count("the update was skipped") for command in resumed] == [0, 1]
    lines = metrics("two")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert all(len(line["tower_losses"]) == 4 for line in lines)
    counts = [0, *(line["skipped_updates"] for line in lines)]
    assert counts[-1] - steps // 3 in (0, 1)
    applied = [line for line, before, after in zip(lines, counts, counts[1:], strict=False) if before == after]
    assert len(applied) == steps - counts[-1]
    assert all(None not in line["tower_losses"] and line["gradient_norm"] > 0.01 for line in applied)

    monkeypatch.setattr("chatbot.corpus.batches.pad_batch", overflowing)
    train_with_flags("--data", "pairs.tsv", *SMALL, *EQUAL, "--steps", str(steps), "--attempt", "one")
    assert metrics("one")[-1]["skipped_updates"] == counts[-1]
    for actual, expected_weight in zip(weights("two"), weights("one"), strict=True):
        np.testing.assert_allclose(actual, expected_weight, atol=1e-5)


@pytest.mark.slow
def test_local_workers_save_at_signal_and_restart_after_kill(pairs_folder: Path) -> None:
    """At the signal, the chief saves after the last step that it shares with the others."""
    write_pairs(Path("held_out.tsv"), 3, "nothing like")
    local = ("--local-workers", "2", "--restarts", "1", "--batch-size", "6", "--attempt", "local", "--preset", "none")
    validated = ("--validation", "held_out.tsv", "--validate-every", "2")
    command = train(*local, *validated, "--log-every", "1", "--steps", "100000")
    until(lambda: len(metrics("local")) > 2, lambda: command.output)
    assert "validation.nats_per_token" in metrics("local")[1]
    _, worker = command.children()
    kill(worker)
    command.wait_for("worker 1 was killed by signal 9; starting it again (1 of 1).")
    command.wait_for("Resuming from step ")
    restarted_at = saved_step("local")
    until(lambda: metrics("local")[-1]["step"] > restarted_at, lambda: command.output)
    os.kill(command.process.pid, signal.SIGTERM)
    assert command.wait() == 130
    assert "Saved. The same command resumes from here" in command.output
    assert saved_step("local") == metrics("local")[-1]["step"] > restarted_at > 0
    until(lambda: not running_processes())


@pytest.mark.slow
def test_restarted_run_goes_on_without_a_worker_that_does_not_come_back(pairs_folder: Path) -> None:
    """Of two, worker 0 goes on alone."""
    shared = (*EQUAL, "--steps", "100000", "--least-workers", "1", "--start-timeout", "0.2", "--attempt", "fewer")
    flags = worker_flags()
    first, second = train(*shared, "--restarts", "1", *flags[0]), train(*shared, *flags[1])
    until(lambda: saved_step("fewer") >= 5, lambda: first.output)
    kill(second.process.pid)
    first.wait_for("training ended with exit code 138; starting it again (1 of 1).")
    step = saved_step("fewer")
    first.wait_for(f"Resuming from step {step} of checkpoints/fewer.")
    assert "Training continues without 1 of 2 workers." in first.output
    until(lambda: saved_step("fewer") > step, lambda: first.output)
    os.kill(first.process.pid, signal.SIGINT)
    assert first.wait() == 130


def test_ctrl_c_ends_a_waiting_worker(pairs_folder: Path) -> None:
    worker = train(*worker_flags()[0])
    worker.wait_for("Waiting for worker 1")
    os.kill(worker.process.pid, signal.SIGINT)
    assert worker.wait() == EXIT_INTERRUPTED
