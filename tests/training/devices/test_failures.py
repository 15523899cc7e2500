"""A GPU that fails in mid-run is named, with texts of TensorFlow's errors and a stub of NVML. No GPU was used."""

import pytest
import tensorflow as tf

from chatbot.errors import LostError
from chatbot.training.devices.failures import device_errors, device_failure, is_out_of_memory
from chatbot.training.devices.towers import Parts, Tower
from tests.training.devices.nvml import Nvml

TOWERS = [Tower("gpu_3", "/GPU:0", "NVIDIA A100", 40 << 30), Tower("gpu_1", "/GPU:1", "NVIDIA A100", 40 << 30)]
SPREAD = [Tower("gpu_3+gpu_1", "/GPU:1", "NVIDIA A100", None, Parts("/GPU:0", "/GPU:1", "/GPU:1"))]
SPLIT = [Tower(f"gpu_3_{i}", f"/GPU:{i}", "NVIDIA A100", 20 << 30, virtual=True) for i in range(2)]
ON_GPU_1 = "{{function_node __wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:GPU:1}} "
ILLEGAL = "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"


EIGHT = [Tower(f"gpu_{i}", f"/GPU:{i}", "NVIDIA RTX 6000 Ada Generation", 48 << 30) for i in range(8)]


def failure_of(text: str, towers: list[Tower] = TOWERS) -> str:
    """The line for an InternalError with this text; empty without one."""
    failure = device_failure(tf.errors.InternalError(None, None, text), towers)
    return "" if failure is None else str(failure)


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
        ("failed to query event: CUDA_ERROR_UNKNOWN: unknown error", "one of the GPUs 3, 1"),
        ("Error invoking NCCL: unhandled cuda error\n\t [[{{node NcclAllReduce_1}}]]", "one of the GPUs 3, 1"),
        ("Blas GEMM launch failed", ""),
        ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", ""),
        ("Error invoking NCCL: unhandled cuda error; Last error: Cuda failure 2 'out of memory'", ""),
        ("Collective ops is aborted by: CUDA_ERROR_UNKNOWN, device:GPU:0 of worker 1", ""),
    ],
)
def test_gpus_that_may_have_failed_are_named(text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml(monkeypatch, 8)
    line = failure_of(text)
    assert line.startswith(expected)
    assert ("; the same command resumes from the last checkpoint" in line) == bool(line) == bool(expected)
    assert "\n" not in line
    assert len(f"error: {failure_of(text, EIGHT)}") < 200


def test_recurring_cuda_error_is_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a GPU does not answer."""
    nvml = Nvml(monkeypatch, 8)
    error = tf.errors.InternalError(None, None, "GPU sync failed: CUDA_ERROR_INVALID_VALUE: reason")
    failure = device_failure(error, EIGHT)
    assert failure is not None
    assert failure.exit_code == 2
    assert str(failure).startswith(
        "one of the GPUs 0, 1, 2, 3, 4, 5, 6, 7 refused a computation (CUDA_ERROR_INVALID_VALUE)"
    )
    assert len(f"error: {failure}") < 200
    nvml.lost = {7}
    assert isinstance(device_failure(error, EIGHT), LostError)


def test_gpu_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the text says. The GPUs of other runs do not matter; towers may share a GPU, or have several."""
    nvml = Nvml(monkeypatch, 4)
    assert failure_of(ILLEGAL, SPREAD).startswith("one of the GPUs 3, 1 failed")
    assert failure_of(ILLEGAL, SPLIT).startswith("GPU 3 failed")
    nvml.lost = {0}
    assert failure_of("Blas GEMM launch failed") == ""
    nvml.lost = {0, 3}
    for text in ("Blas GEMM launch failed", ON_GPU_1 + ILLEGAL):
        assert failure_of(text).startswith("GPU 3 does not answer (GPU is lost); the same command resumes from the")
    nvml.lost = {1}
    assert failure_of("x", SPREAD).startswith("GPU 1 does not answer")
    assert failure_of("x", SPLIT) == ""


def test_errors_without_gpus_are_unchanged(cpus: list[Tower], monkeypatch: pytest.MonkeyPatch) -> None:
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
