"""Real processes that train together: they equal one device, agree, lose each other, and go on."""

import itertools
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.corpus.batching.batches import Batches, pad_batch
from chatbot.training.machines.cluster import free_addresses
from chatbot.training.selftest import random_pairs
from tests.training.machines.running import (
    kill,
    marked,
    metrics,
    saved_step,
    train,
    until,
    weights,
    write_pairs,
)

# Adam, clipped at every step.
EXACT = ("--keep-prob", "1.0", "--batch-size", "10", "--max-gradient-norm", "0.01", "--log-every", "1")
EQUAL = ("--save-every", "5", *EXACT)


def machines(count: int = 2) -> list[tuple[str, ...]]:
    """The flags of each machine."""
    hosts = ",".join(free_addresses(count))
    return [("--worker-hosts", hosts, "--task-index", str(i)) for i in range(count)]


def test_two_machines_with_two_towers_each_equal_one_device_through_loss_and_resume(place: Path) -> None:
    """The second comes late, is killed, and comes back; the weights end where those of one device end."""
    together = (*EQUAL, "--towers", "2", "--attempt", "two")
    flags = machines()
    first = train(*together, *flags[0])
    first.wait_for("Waiting for worker 1")
    time.sleep(3)
    second = train(*together, *flags[1])
    second.wait_for("2 workers with 2 towers each train together.")
    waiting = re.findall(r"Waiting for worker 1 \((\S+)\): \d+ of at most 600 seconds", first.said)
    assert waiting == [flags[1][1].split(",")[1]], first.said
    until(lambda: saved_step("two") >= 10, 120)
    kill(second.process.pid)
    killed = time.monotonic()
    assert first.ended(60) == 138
    print(f"named after {time.monotonic() - killed:.1f} seconds")
    assert f"error: worker 1 ({waiting[0]}) was lost: it has not answered for 5 seconds." in first.said

    step = saved_step("two")
    again = [train(*together, *mine, "--steps", str(step + 7)) for mine in reversed(flags)]
    assert [command.ended() for command in again] == [0, 0]
    assert f"Going on from step {step} of checkpoints/two." in again[1].said
    assert all(f"Stopped at step {step + 7}" in command.said for command in again)
    lines = metrics("two")
    assert [line["step"] for line in lines] == list(range(1, step + 8))
    assert all(len(line["tower_losses"]) == 4 and None not in line["tower_losses"] for line in lines)
    assert all(line["gradient_norm"] > 0.01 for line in lines)

    straight = train(*EQUAL, "--steps", str(step + 7), "--attempt", "one")
    assert straight.ended() == 0
    for ours, theirs in zip(weights("two"), weights("one"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_machine_reads_its_own_share_only(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def noted(pairs: Any, rows: Any, *lengths: int) -> Any:
        read.extend(rows.tolist())
        return pad_batch(pairs, rows, *lengths)

    monkeypatch.setattr("chatbot.corpus.batching.batches.pad_batch", noted)
    pairs = random_pairs(60, 1)
    batches = Batches([pairs], 12, 1)
    whole = batches.shares_from(0, 6)
    parts = [batches.shares_from(0, 2, machine, 3) for machine in range(3)]
    for _ in range(2 * batches.steps_per_epoch):
        read.clear()
        expected, wanted = next(whole), read.copy()
        shares: list[Any] = []
        readers = []
        for part in parts:
            read.clear()
            shares += next(part)
            readers.append(read.copy())
        assert [*itertools.chain(*readers)] == wanted
        assert max(map(len, readers)) <= -(-len(wanted) // 3) + 1
        for ours, theirs in zip(shares, expected, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_machines_that_were_told_differently_refuse_to_train(place: Path) -> None:
    """Settings and data differ, one after the other, by the same two addresses."""
    write_pairs(Path("others.tsv"), 23)
    flags = machines()
    for others, data, words in [
        (("--rnn-size", "18"), "pairs.tsv", "--rnn-size: 16 on worker 0, 18 on worker 1"),
        ((), "others.tsv", "training pairs: 24 on worker 0, 23 on worker 1"),
    ]:
        both = train(*flags[0]), train(*flags[1], *others, data=data)
        for command in both:
            assert command.ended() == 2
            errors = [line for line in command.said.split("\n") if "error" in line]
            assert errors == [
                f"error: the machines were told differently: {words}; give all of them the same flags and files"
            ]
    assert not Path("checkpoints/default/last").exists()


@pytest.mark.slow
def test_local_workers_save_at_a_signal_and_start_again_when_one_is_killed(place: Path) -> None:
    local = ("--local-workers", "2", "--restarts", "1", "--batch-size", "6", "--attempt", "local")
    begun = train(*local, "--steps", "100000")
    until(lambda: len(metrics("local")) > 2, 120)
    os.kill(begun.process.pid, signal.SIGTERM)
    assert begun.ended(60) == 130
    until(lambda: not marked(), 3)
    step = saved_step("local")
    assert step == metrics("local")[-1]["step"] > 0
    assert "Saved. The same command goes on from here" in begun.said

    going_on = train(*local, "--steps", str(step + 20))
    until(lambda: len(going_on.children()) == 2, 60)
    time.sleep(4)  # while it imports, joins, or traces
    kill(going_on.children()[1])
    assert going_on.ended() == 0
    assert "worker 1 was killed by signal 9; starting it again (1 of 1)." in going_on.said
    assert saved_step("local") == step + 20
    until(lambda: not marked(), 3)


def test_bad_data_is_said_once(place: Path) -> None:
    command = train("--local-workers", "2", data="none.tsv")
    assert command.ended() == 2
    assert command.said.count("error:") == command.said.count("none.tsv: no such file") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_waits_can_be_ended(place: Path, number: int) -> None:
    alone = train(*machines()[0])
    alone.wait_for("Waiting for worker 1")
    os.kill(alone.process.pid, number)
    assert alone.ended(5) == -number


def test_who_never_comes_is_named(place: Path) -> None:
    flags = machines()
    alone = train(*flags[1], "--start-limit", "4")
    assert alone.ended(60) == 138
    assert f"error: worker 0 ({flags[1][1].split(',')[0]}) did not start within 4 seconds (--start-limit)" in alone.said
