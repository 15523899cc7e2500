"""A GPU that fails in mid-run is named, with texts of TensorFlow's errors and a stub of NVML. No GPU was used."""

import subprocess
import sys

import pytest
import tensorflow as tf

from chatbot.errors import EXIT_LOST, LostError
from chatbot.training.devices.failures import device_errors, device_failure, is_out_of_memory
from chatbot.training.devices.towers import Parts, Tower
from tests.commands import ENVIRONMENT, ROOT
from tests.training.devices.nvml import Nvml

TOWERS = [Tower("gpu_3", "/GPU:0", "NVIDIA A100", 40 << 30), Tower("gpu_1", "/GPU:1", "NVIDIA A100", 40 << 30)]
SPREAD = [Tower("gpu_3+gpu_1", "/GPU:1", "NVIDIA A100", None, Parts("/GPU:0", "/GPU:1", "/GPU:1"))]
SPLIT = [Tower(f"gpu_3_{i}", f"/GPU:{i}", "NVIDIA A100", 20 << 30, virtual=True) for i in range(2)]
ON_GPU_1 = "{{function_node __wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:GPU:1}} "
ILLEGAL = "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"


def failure_of(text: str, towers: list[Tower] = TOWERS) -> str | None:
    """The line for an InternalError with this text."""
    failure = device_failure(tf.errors.InternalError(None, None, text), towers)
    return None if failure is None else str(failure)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ON_GPU_1 + ILLEGAL + " [Op:AddV2]", "one of the GPUs 3, 1 failed (CUDA_ERROR_ILLEGAL_ADDRESS)"),
        (
            "Could not synchronize CUDA stream: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
            "one of the GPUs 3, 1 failed (CUDA_ERROR_LAUNCH_FAILED)",
        ),
        (
            "Failed copying input tensor from /job:localhost/replica:0/task:0/device:GPU:0 to "
            "/job:localhost/replica:0/task:0/device:CPU:0 in order to run Identity: GPU sync failed [Op:Identity]",
            "one of the GPUs 3, 1 failed (GPU sync failed)",
        ),
        (
            "failed to query event: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error",
            "one of the GPUs 3, 1",
        ),
        ("failed to query event: CUDA_ERROR_UNKNOWN: unknown error", "one of the GPUs 3, 1"),
        ("Could not synchronize CUDA stream", "one of the GPUs 3, 1 failed (Could not synchronize CUDA stream)"),
        ("Error invoking NCCL: unhandled cuda error\n\t [[{{node NcclAllReduce_1}}]]", "one of the GPUs 3, 1"),
        ("Blas GEMM launch failed", None),
        ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", None),
        ("Error invoking NCCL: unhandled cuda error; Last error: Cuda failure 2 'out of memory'", None),
        ("Collective ops is aborted by: CUDA_ERROR_UNKNOWN, device:GPU:0 of worker 1", None),
    ],
)
def test_gpus_that_may_have_failed_are_named(text: str, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml(monkeypatch, 4)
    line = failure_of(text)
    if expected is None or line is None:
        assert line is expected
        return
    assert line.startswith(expected)
    assert "; the same command resumes from the last checkpoint" in line
    assert "\n" not in line


@pytest.mark.parametrize("name", ["NO_BINARY_FOR_GPU", "INVALID_VALUE", "NOT_SUPPORTED", "LAUNCH_OUT_OF_RESOURCES"])
def test_error_of_cuda_that_comes_again_is_not_restarted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(monkeypatch, 8)
    towers = [Tower(f"gpu_{i}", f"/GPU:{i}", "NVIDIA", 48 << 30) for i in range(8)]
    error = tf.errors.InternalError(None, None, f"GPU sync failed: CUDA_ERROR_{name}: reason")
    failure = device_failure(error, towers)
    assert failure is not None
    assert failure.exit_code == 2
    assert str(failure).startswith(f"one of the GPUs 0, 1, 2, 3, 4, 5, 6, 7 refused a computation (CUDA_ERROR_{name})")
    assert len(f"error: {failure}") < 200
    nvml.lost = {7}
    assert isinstance(device_failure(error, towers), LostError)


def test_lines_are_short_with_eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """With "error: " in front, they have less than 200 characters."""
    Nvml(monkeypatch, 8)
    towers = [Tower(f"gpu_{i}", f"/GPU:{i}", "NVIDIA RTX 6000 Ada Generation", 48 << 30) for i in range(8)]
    for text in ("uncorrectable ECC error encountered", "Error invoking NCCL: unhandled cuda error"):
        line = failure_of(text, towers)
        assert line is not None
        assert len(line) < 200 - len("error: ")


def test_gpu_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the text says. The GPUs of other runs do not matter."""
    nvml = Nvml(monkeypatch, 4)
    nvml.lost = {0}
    assert failure_of("Blas GEMM launch failed") is None
    nvml.lost = {0, 3}
    for text in ("Blas GEMM launch failed", ON_GPU_1 + ILLEGAL):
        line = failure_of(text)
        assert line is not None
        assert line.startswith("GPU 3 does not answer (GPU is lost); the same command resumes from the last checkpoint")


def test_parts_of_towers_and_split_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(monkeypatch, 4)
    assert str(failure_of(ILLEGAL, SPREAD)).startswith("one of the GPUs 3, 1 failed")
    assert str(failure_of(ILLEGAL, SPLIT)).startswith("GPU 3 failed")
    nvml.lost = {1}
    assert str(failure_of("x", SPREAD)).startswith("GPU 1 does not answer")
    assert failure_of("x", SPLIT) is None


def test_errors_without_gpus_stay_as_they_are(cpus: list[Tower], monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml(monkeypatch, 4).lost = {0, 1, 2, 3}
    error = tf.errors.InternalError(None, None, ILLEGAL)
    with pytest.raises(tf.errors.InternalError), device_errors(cpus):
        raise error
    with pytest.raises(LostError, match="GPU 3 does not answer") as raised, device_errors(TOWERS):
        raise error
    assert raised.value.__cause__ is error


def test_failed_gpu_is_not_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(monkeypatch, 4)
    error = tf.errors.InternalError(None, None, "failed to allocate")
    assert is_out_of_memory(error, TOWERS)
    nvml.lost = {1}
    assert not is_out_of_memory(error, TOWERS)
    assert is_out_of_memory(tf.errors.ResourceExhaustedError(None, None, "OOM"), TOWERS)


def test_thread_ends_the_process_whose_line_of_progress_or_streams_end() -> None:
    program = """
import sys, threading
from chatbot.errors import LostError, end_process
print("step 1", end="", file=sys.stderr)
{}
threading.Thread(target=end_process, args=(LostError("it stands still"),)).start()
"""
    for before, expected in (
        ("", "step 1\nerror: it stands still\n"),
        ("sys.stdout.close(); sys.stderr.close()", "step 1"),
    ):
        command = [sys.executable, "-c", program.format(before)]
        completed = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert (completed.returncode, completed.stderr) == (EXIT_LOST, expected)


def test_exit_code_of_a_failed_device(tmp_path: object) -> None:
    """In a new process, which ends at once, without the handlers at exit of a process with a device."""
    program = """
import atexit
from chatbot.errors import LostError, exit_code_of
def main():
    print("output")
    raise LostError("tower 0 failed")
atexit.register(print, "not printed")
raise SystemExit(exit_code_of(main))
"""
    command = [sys.executable, "-c", program]
    completed = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert completed.returncode == EXIT_LOST == 138
    assert (completed.stdout, completed.stderr) == ("output\n", "error: tower 0 failed\n")
