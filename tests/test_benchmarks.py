"""What the benchmarks compute: the ring's formula, and one small run of all that scaling measures."""

import json
import subprocess
import sys

import pytest

from benchmarks.ring import LINKS, Link, plan, ring_bytes, ring_seconds, speed_up
from tests.commands import ENVIRONMENT, ROOT, run

SLOW = Link("a byte a second", 1.0, 0.0)


def sent_by_a_ring(size: int, members: int) -> int:
    """The twin: a ring played through, piece by piece; what one member sends."""
    piece = size // members
    return sum(piece for _ in range(members - 1)) + sum(piece for _ in range(members - 1))


@pytest.mark.parametrize("members", [2, 3, 8, 1024])
def test_bytes_of_a_ring(members: int) -> None:
    size = 12 * 1024 * members
    assert ring_bytes(size, members) == pytest.approx(sent_by_a_ring(size, members))
    assert ring_seconds(size, members, SLOW) == pytest.approx(sent_by_a_ring(size, members))


def test_latency_counts_for_each_message() -> None:
    assert ring_seconds(0, 5, Link("", 1.0, 0.5)) == 2 * 4 * 0.5


def test_speed_up() -> None:
    assert speed_up(10.0, 0, 4, SLOW) == 4
    assert speed_up(10.0, 10, 2, SLOW) == 2 * 10 / (10 + 10)
    assert speed_up(10.0, 10, 2, SLOW, staged=True) == 2
    rows = plan(0.1, 60e6, [LINKS["25gbe"]])
    assert [row["gpus"] for row in rows] == [2**i for i in range(1, 11)]
    efficiencies = [row["speed_up"] / row["gpus"] for row in rows]
    assert efficiencies == sorted(efficiencies, reverse=True)


def test_a_plan_for_a_step_that_was_measured_elsewhere() -> None:
    done = run(
        "benchmarks", "scaling", "--plan", "--step-ms", "100", "--link", "nvlink", "--no-towers", "--no-processes"
    )
    assert done.returncode == 0
    found = json.loads(done.stdout.decode().splitlines()[-1])
    assert found["plan"][0]["link"] == "nvlink"
    assert 1.9 < found["plan"][0]["speed_up"] <= 2


def test_a_plan_needs_a_step() -> None:
    done = run("benchmarks", "scaling", "--plan", "--no-towers", "--no-processes")
    assert done.returncode == 2
    assert b"no step was measured" in done.stderr


@pytest.mark.slow
def test_scaling_of_a_tiny_model() -> None:
    sizes = ["--rnn-size", "8", "--embedding-size", "8", "--vocabulary-size", "50", "--batch-size", "8"]
    command = [sys.executable, "-m", "benchmarks", "scaling", *sizes, "--max-length", "4", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert [row["number"] for row in found["towers"]] == [1, 2, 4]
    assert [row["number"] for row in found["processes"]] == [1, 2]
    assert 0 < found["gradient_bytes"] <= found["sent_bytes"] * 1.01
    assert found["least_bytes"] == found["gradient_bytes"]
    assert "a step of 4 towers takes" in found["verdict"]
