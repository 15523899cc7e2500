"""The formulas of the benchmarks, and a small run of each benchmark that measures."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cost import growth_ratios
from benchmarks.peers import REPORT, TRANSLATED
from benchmarks.ring import LINKS, Link, plan, ring_bytes, ring_seconds, speed_up
from benchmarks.scaling import tower_devices
from tests.commands import ENVIRONMENT, ROOT, run

SLOW = Link("a byte a second", 1.0, 0.0)


def sent_by_a_ring(size: int, members: int) -> int:
    """Run a ring all-reduce of `size` numbers a member. Returns how many numbers each member sends.

    In every message a member sends one piece to the next member, which adds it to its own in the first half of the
    messages, and replaces its own by it in the second.
    """
    pieces = np.ones((members, members, size // members))  # [member, piece, numbers]
    sent = 0
    for message in range(2 * (members - 1)):
        before = pieces.copy()
        for member in range(members):
            piece, receiver = (member - message) % members, (member + 1) % members
            kept = before[receiver, piece] if message < members - 1 else 0
            pieces[receiver, piece] = kept + before[member, piece]
        sent += size // members
    assert (pieces == members).all()
    return sent


@pytest.mark.parametrize("members", [2, 3, 8, 32])
def test_bytes_of_a_ring(members: int) -> None:
    size = 12 * members
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
    assert found["least_bytes"] <= found["sent_bytes"] * 1.01
    assert [row["efficiency"] for row in found["towers"]] == [row["speed_up"] for row in found["towers"]]
    assert found["processes"][1]["efficiency"] == pytest.approx(found["processes"][1]["speed_up"] / 2, rel=1e-4)
    assert "a step of 4 towers takes" in found["verdict"]


@pytest.mark.parametrize(("towers", "gpus", "devices"), [(4, 0, 1), (4, 1, 1), (2, 4, 2), (4, 4, 4)])
def test_efficiency_counts_the_devices_that_towers_use(towers: int, gpus: int, devices: int) -> None:
    assert tower_devices(towers, gpus) == devices


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    """A few pairs of short words."""
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"你好 {i % 7}\t我 很 好 {i % 5}\n" for i in range(40)), encoding="utf-8")
    return str(file)


TINY = ["--rnn-size", "8", "--num-layers", "1", "--embedding-size", "8", "--batch-size", "8", "--rounds", "1"]


def benchmark(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_training_and_where_its_time_goes(pairs: str) -> None:
    found = benchmark("train", "--data", pairs, *TINY, "--steps", "2")
    assert found["target_tokens_per_s"].keys() == {"float32", "bfloat16"}
    assert 0 < found["of_limit"] < 1
    parts, products = found["parts_s"], found["products_s"]
    assert parts.keys() == {"projection", "loss", "recurrent", "attention", "optimizer", "input", "overhead"}
    assert products.keys() == {"projection", "recurrent", "attention"}
    assert all(parts[name] > seconds > 0 for name, seconds in products.items())
    assert 0 < parts["optimizer"] < found["step_s"]


@pytest.mark.slow
def test_decoding(pairs: str) -> None:
    found = benchmark("decode", "--data", pairs, *TINY, "--steps", "2", "--questions", "3", "--no-cold")
    assert len(found["replies_per_s"]) == 4
    assert all(rate > 0 for rate in found["replies_per_s"].values())


def test_a_missing_file_of_the_peers_is_named(pairs: str, tmp_path: Path) -> None:
    done = run("benchmarks", "train", "--data", pairs, "--peers", str(tmp_path))
    assert done.returncode == 2
    assert b"torch_seq2seq.py: not found" in done.stderr


def test_the_output_of_opennmt_is_parsed() -> None:
    line = "Step 20/60; acc: 19.1; sents:     640; bsz:  508/ 327/64; 1346/866 tok/s;      8 sec;"
    assert REPORT.findall(line) == [("327", "866")]
    assert TRANSLATED.findall("Total translation time (s): 12.5") == ["12.5"]


def test_growth_ratios() -> None:
    rows = [{"what": "batch_size", "value": 2**i, "step_s": 2.0**i} for i in range(3)]
    rows += [{"what": "rnn_size", "value": 2**i, "step_s": 5.0**i} for i in range(2)]
    assert [growth["ratio"] for growth in growth_ratios(rows)] == [1.0, 1.0, 1.25]
