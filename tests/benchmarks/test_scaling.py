"""The benchmark of towers and processes: the formulas of the exchange, its flags, and a small run."""

import json

import numpy as np
import pytest

from benchmarks.ring import LINKS, Link, overlapped_speed_up, plan, ring_bytes, ring_seconds, speed_up
from benchmarks.scaling import scaling_benchmark, tower_devices
from benchmarks.scaling_flags import ScalingBenchmark
from chatbot.errors import UserError

SLOW = Link("a byte a second", 1.0, 0.0)


def numbers_sent(size: int, members: int) -> int:
    """Simulate a ring all-reduce of `size` numbers per member. Returns the numbers that each member sends.

    In every message a member sends one piece to the next member, which adds it to its own piece in the first half
    of the messages, and replaces its own piece by it in the second half.
    """
    pieces = np.ones((members, members, size // members))  # [member, piece, numbers]
    sent = 0
    for message in range(2 * (members - 1)):
        before = pieces.copy()
        for member in range(members):
            piece, receiver = (member - message) % members, (member + 1) % members
            own = before[receiver, piece] if message < members - 1 else 0
            pieces[receiver, piece] = own + before[member, piece]
        sent += size // members
    assert (pieces == members).all()
    return sent


@pytest.mark.parametrize("members", [2, 3, 8, 32])
def test_ring_bytes_equal_a_simulated_all_reduce(members: int) -> None:
    size = 12 * members
    assert ring_bytes(size, members) == pytest.approx(numbers_sent(size, members))
    assert ring_seconds(size, members, SLOW) == pytest.approx(numbers_sent(size, members))


def test_ring_latency_counts_per_message() -> None:
    assert ring_seconds(0, 5, Link("", 1.0, 0.5)) == 2 * 4 * 0.5


def test_speed_up_of_exchange_after_and_during_compute() -> None:
    assert speed_up(10.0, 0, 4, SLOW) == 4
    assert speed_up(10.0, 10, 2, SLOW) == 2 * 10 / (10 + 10)
    assert speed_up(10.0, 10, 2, SLOW, staged=True) == 2
    rows = plan(0.1, 60e6, 20e6, [LINKS["25gbe"]])
    assert [row["gpus"] for row in rows] == [2**i for i in range(1, 11)]
    for exchange in ("speed_up", "overlapped"):
        efficiencies = [row[exchange] / row["gpus"] for row in rows]
        assert efficiencies == sorted(efficiencies, reverse=True)
    assert all(row["speed_up"] < row["overlapped"] < row["staged"] for row in rows[:8])


def test_exchange_overlaps_with_two_thirds_of_the_step() -> None:
    """Two members send as many bytes as they have gradients, a byte a second."""
    hidden, last = overlapped_speed_up(9.0, 6 + 1, 1, 2, SLOW), 1  # all but the last byte fits into 6 of 9 seconds
    assert hidden == pytest.approx(2 * 9 / (9 + last))
    assert overlapped_speed_up(9.0, 8 + 1, 1, 2, SLOW) == pytest.approx(2 * 9 / (9 + (8 - 6) + last))
    assert overlapped_speed_up(9.0, 5, 5, 2, SLOW) == speed_up(9.0, 5, 2, SLOW)


def test_plan_uses_a_given_step_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaling_benchmark(["--plan", "--step-ms", "100", "--link", "nvlink", "--towers", "0", "--no-processes"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["plan"][0]["link"] == "nvlink"
    assert 1.9 < report["plan"][0]["speed_up"] < report["plan"][0]["overlapped"] <= 2


def test_plan_without_step_time_is_refused() -> None:
    with pytest.raises(UserError, match="no step was measured"):
        scaling_benchmark(["--plan", "--towers", "0", "--no-processes"])


@pytest.mark.parametrize(("towers", "numbers"), [(0, []), (1, [1]), (6, [1, 2, 4]), (8, [1, 2, 4, 8])])
def test_numbers_of_towers_are_powers_of_two(towers: int, numbers: list[int]) -> None:
    assert ScalingBenchmark(towers=towers).tower_numbers == numbers


def test_more_towers_than_pairs_are_refused() -> None:
    with pytest.raises(UserError, match="--towers 8: more than the 4 pairs of a step"):
        scaling_benchmark(["--towers", "8", "--batch-size", "4"])


@pytest.mark.parametrize(("towers", "gpus", "devices"), [(4, 0, 1), (4, 1, 1), (2, 4, 2), (4, 4, 4)])
def test_efficiency_counts_devices_in_use(towers: int, gpus: int, devices: int) -> None:
    assert tower_devices(towers, gpus) == devices
