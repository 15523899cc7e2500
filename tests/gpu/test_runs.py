"""Steps on a GPU: cuDNN's kernels, no waiting, one trace, determinism, splitting of one GPU, too little memory.

These tests have never run.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.commands import run
from tests.gpu import runs
from tests.gpu.process import environment, on_gpu

pytestmark = pytest.mark.gpu


def test_step_runs_kernels_of_cudnn_and_waits_for_its_results_only(tmp_path: Path) -> None:
    found = on_gpu(runs.profile, tmp_path)
    operations, planes = found["operations"], found["planes"]
    assert {"CudnnRNNV3", "CudnnRNNBackpropV3"} <= operations
    assert not {"While", "StatelessWhile"} & operations
    of_host = {name.rpartition(":")[2] for plane, names in planes.items() if "CPU" in plane for name in names}
    assert {"CudnnRNNV3", "CudnnRNNBackpropV3"} <= of_host, sorted(of_host)
    of_gpu = [names for plane, names in planes.items() if plane.startswith("/device:GPU")]
    assert any(of_gpu), f"the profiler saw no event on the GPU (is CUPTI installed?): {sorted(planes)}"
    copies = sum(number for names in of_gpu for name, number in names.items() if "MemcpyD2H" in name)
    assert copies <= 3 * runs.PROFILED_STEPS


def test_nothing_is_traced_again_for_batches_of_other_sizes(tmp_path: Path) -> None:
    found = on_gpu(runs.traces, tmp_path)
    assert found["sizes"] == runs.BATCHES
    assert (found["step"], found["gradients"]) == (1, 1)


def test_deterministic_runs_are_equal_to_the_bit(tmp_path: Path) -> None:
    one, other = on_gpu(runs.deterministic, tmp_path)
    for name, weight in one.items():
        np.testing.assert_array_equal(weight, other[name], err_msg=name)


def test_update_that_is_not_finite_is_skipped(tmp_path: Path) -> None:
    with_bad, without = on_gpu(runs.skipped, tmp_path)
    assert with_bad["applied"] == [True, False, True]
    for one, other in zip(with_bad["weights"], without["weights"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("variable_update", ["parameter_server", "replicated"])
def test_one_gpu_split_into_two_towers_trains_as_one(variable_update: str, work_dir: Path) -> None:
    arguments = "--selftest", "--towers", "2", "--variable-update", variable_update
    completed = run("train.py", *arguments, environment=environment())
    output = (completed.stdout + completed.stderr).decode()
    assert completed.returncode == 0, output
    assert "/GPU:1" in output
    assert "Verdict: these devices train together as one." in output


def test_selftest_of_one_tower_says_what_it_needs(work_dir: Path) -> None:
    completed = run("train.py", "--selftest", "--towers", "1", environment=environment())
    assert completed.returncode == 2
    assert b"--selftest compares several towers with one; use --towers 2 or more" in completed.stderr


def test_batch_that_does_not_fit_is_split_with_the_same_result(tmp_path: Path) -> None:
    """The second device, with the memory for a whole batch, is on the same GPU."""
    small, large = on_gpu(runs.out_of_memory, tmp_path, runs.SMALL_MEMORY, runs.LARGE_MEMORY)
    assert (large["pieces"], large["messages"]) == (1, 0), "the GPU has too little memory for this test"
    assert small["pieces"] > 1
    assert small["messages"] == 1
    assert len(small["losses"]) == 3
    np.testing.assert_allclose(small["losses"], large["losses"], rtol=1e-4)
    for one, other in zip(small["weights"], large["weights"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
