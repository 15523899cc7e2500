"""Steps on GPUs: determinism, work at the same time, all ways to train, splitting of one GPU, too little memory."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.flags import replace
from chatbot.training.devices.towers import Tower
from chatbot.training.selftest import TOLERANCE, largest_difference, random_pairs, train_model
from tests.commands import run
from tests.gpu import runs
from tests.gpu.process import environment, on_gpu, on_standins

pytestmark = pytest.mark.gpu


def test_deterministic_runs_are_equal_to_the_bit(tmp_path: Path) -> None:
    one, other = on_gpu(runs.deterministic, tmp_path)
    for name, weight in one.items():
        np.testing.assert_array_equal(weight, other[name], err_msg=name)


def test_gpus_work_at_the_same_time_in_float16(tmp_path: Path) -> None:
    """They equal one GPU, skip what overflows, and let the host wait for nothing."""
    trace = tmp_path / "trace"
    slow = ";".join(f"slow gpu={gpu} factor=20" for gpu in range(2))
    one, two = on_standins(runs.float16, tmp_path, 2, trace=trace, faults=slow)
    for run_of_gpus in (one, two):
        assert [finite for finite, _ in run_of_gpus["outcomes"]] == [True, False, True]
        assert run_of_gpus["outcomes"][1] == (False, True)
        assert run_of_gpus["loss_scale"] == [-1, 1]
        assert not any(run_of_gpus["copies"])
    for actual, expected in zip(two["weights"], one["weights"], strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-3)
    kernels: dict[str, list[tuple[int, int]]] = {"0": [], "1": []}
    for line in trace.read_text().splitlines():
        gpu, operation, begin, end = line.split()
        if operation.startswith("CudnnRNN"):
            kernels[gpu].append((int(begin), int(end)))
    last_step = [of_gpu[-4:] for of_gpu in kernels.values()]  # two layers, forwards and backwards
    assert max(of_gpu[0][0] for of_gpu in last_step) < min(of_gpu[-1][1] for of_gpu in last_step)


def test_a_slow_gpu_and_a_slow_host_work_at_the_same_time(tmp_path: Path) -> None:
    """Each takes as long for a step as the other. In turns, they would take twice the time of one."""
    seconds = on_standins(runs.overlapping, tmp_path, 1, faults="slow gpu=0 factor=5")
    assert seconds["together"] < 1.6 * seconds["alone"]


@pytest.fixture(scope="module")
def weights_of_all_ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[np.ndarray]]:
    """The weights that four GPUs have trained in each way."""
    return on_standins(runs.weights_of_all_ways, tmp_path_factory.mktemp("ways"), 4)


@functools.cache
def weights_on_cpus(towers: int, changes: tuple[tuple[str, Any], ...]) -> list[np.ndarray]:
    """The weights that CPUs have trained with some changes of the settings."""
    cpus = [Tower(f"cpu_{i}", f"/CPU:{i}", "CPU", None) for i in range(towers)]
    return train_model(replace(runs.CLIPPED, **dict(changes)), cpus, random_pairs(67, 1))[0]


@pytest.mark.parametrize("way", runs.WAYS)
def test_four_gpus_train_as_the_cpu(way: str, weights_of_all_ways: dict[str, list[np.ndarray]]) -> None:
    """As one tower on the CPU, since the way to train does not change the result; independent copies as four."""
    changing = ("staged_variables", "batch_size", "accumulate")
    changes = tuple((name, value) for name, value in runs.WAYS[way].items() if name in changing)
    towers = 1
    if way == "independent copies":
        towers, changes = 4, (("variable_update", "independent"),)
    assert largest_difference(weights_of_all_ways[way], weights_on_cpus(towers, changes)) < TOLERANCE


def test_one_gpu_split_into_two_towers_trains_as_one(work_dir: Path) -> None:
    completed = run("train.py", "--selftest", "--towers", "2", environment=environment())
    output = (completed.stdout + completed.stderr).decode()
    assert completed.returncode == 0, output
    assert "/GPU:1" in output
    assert "Verdict: these devices train together as one." in output


def test_batch_that_does_not_fit_is_split_with_the_same_result(tmp_path: Path) -> None:
    """The second device, with the memory for a whole batch, is on the same GPU."""
    small, large = on_gpu(runs.out_of_memory, tmp_path, runs.SMALL_MEMORY, runs.LARGE_MEMORY)
    assert (large["positions"], large["messages"]) == (None, 0), "the GPU has too little memory for this test"
    assert small["positions"]
    assert small["messages"] == 1
    assert len(small["losses"]) == 3
    np.testing.assert_allclose(small["losses"], large["losses"], rtol=1e-4)
    for one, other in zip(small["weights"], large["weights"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
