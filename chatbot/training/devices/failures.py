"""Classifies TensorFlow errors as GPU failures or out-of-memory errors."""

import contextlib
import re
from collections.abc import Iterator, Sequence

import tensorflow as tf

from chatbot.errors import LostError, UserError
from chatbot.training.devices.gpus import silent_gpus
from chatbot.training.devices.towers import Tower

RESUME = "the same command resumes from the last checkpoint"

# CUDA errors after which a new process may succeed. All other errors would recur in every process. Source:
# docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
TRANSIENT_ERRORS = {
    *("ASSERT", "CONTAINED", "CONTEXT_IS_DESTROYED", "DEINITIALIZED", "DEVICE_UNAVAILABLE", "ECC_UNCORRECTABLE"),
    *("EXTERNAL_DEVICE", "HARDWARE_STACK_ERROR", "ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION", "INVALID_ADDRESS_SPACE"),
    *("INVALID_PC", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "MISALIGNED_ADDRESS", "MPS_CLIENT_TERMINATED"),
    *("MPS_CONNECTION_FAILED", "MPS_RPC_FAILURE", "MPS_SERVER_NOT_READY", "NVLINK_UNCORRECTABLE", "OPERATING_SYSTEM"),
    *("SYSTEM_NOT_READY", "TENSOR_MEMORY_LEAK", "UNKNOWN"),
}
# Messages with which TensorFlow reports a failed GPU, from issues 25866, 27281, 41891, 45901, 46247 and 59890 of
# github.com/tensorflow/tensorflow.
CUDA_ERROR = re.compile(r"CUDA_ERROR_(?!OUT_OF_MEMORY)(\w+)")
FAILURES = re.compile(
    r"(GPU sync failed|Could not synchronize CUDA stream|GPU is lost|unspecified launch failure"
    r"|an illegal memory access was encountered|uncorrectable ECC error encountered"
    r"|(Error invoking NCCL: )?unhandled cuda error)",
    re.IGNORECASE,
)
# Messages of out-of-memory errors and of errors on other machines.
OTHER_CAUSES = re.compile(r"out of memory|Collective ops is aborted by", re.IGNORECASE)
# Messages, in lower case, with which TensorFlow 2.21 reports that a GPU is out of memory. cuDNN's recurrent kernels use
# the first two for every failure (github.com/tensorflow/tensorflow/issues/39453).
MEMORY_TEXTS = (
    "failed to call dornnforward",
    "failed to call dornnbackward",
    "cudnn_status_",
    "cublas_status_alloc_failed",
    "dst tensor is not initialized",
    "failed to allocate",
    "out of memory",
    "resource_exhausted",
)


@contextlib.contextmanager
def device_errors(towers: Sequence[Tower]) -> Iterator[None]:
    """Convert TensorFlow errors in the `with` block that a failed GPU has caused into errors that name the GPU."""
    try:
        yield
    except tf.errors.OpError as error:
        if failure := device_failure(error, towers):
            raise failure from error
        raise


def device_failure(error: tf.errors.OpError, towers: Sequence[Tower]) -> UserError | None:
    """Return the error to raise if a failed GPU caused a TensorFlow error, else None.

    If a GPU does not respond to NVML, NVIDIA's management library, the new error names this GPU. If all GPUs respond,
    the error names all of them. It is a LostError if training may succeed after a restart.

    Args:
        error: The TensorFlow error.
        towers: The towers (model replicas) of this process, with their GPUs.
    """
    numbers = gpu_ids(towers)
    text = str(error)
    if not numbers:
        return None
    if lost := lost_gpu(towers):
        return lost
    cuda = CUDA_ERROR.search(text)
    cause = cuda or FAILURES.search(text)
    if cause is None or OTHER_CAUSES.search(text):
        return None
    suspects = f"GPU {numbers[0]}" if len(numbers) == 1 else f"one of the GPUs {', '.join(map(str, numbers))}"
    if cuda and cuda[1] not in TRANSIENT_ERRORS:
        return UserError(
            f"{suspects} refused a computation ({cuda.group()}), and would again: update NVIDIA's driver and CUDA "
            "(`make gpu`), or select other GPUs with --gpus"
        )
    return _device_error(f"{suspects} failed ({cause.group()})")


def lost_gpu(towers: Sequence[Tower]) -> LostError | None:
    """Return an error for the first GPU of these towers that does not respond to NVML; None if all respond."""
    silent = silent_gpus()
    lost = next((number for number in gpu_ids(towers) if number in silent), None)
    return None if lost is None else _device_error(f"GPU {lost} does not answer ({silent[lost]})")


def gpu_ids(towers: Sequence[Tower]) -> list[int]:
    """Return the ids of the physical GPUs that the towers use, without duplicates."""
    return [*dict.fromkeys(int(number) for tower in towers for number in re.findall(r"gpu_(\d+)", tower.name))]


def _device_error(what: str) -> LostError:
    return LostError(f"{what}; {RESUME}. See `dmesg` (Xid); --gpus can leave it out")


def is_out_of_memory(error: tf.errors.OpError, towers: Sequence[Tower] = ()) -> bool:
    """Return whether an error means that a device is out of memory.

    Some error messages can also mean that a GPU has failed. They count as out of memory only if all GPUs of these
    towers respond.
    """
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return True
    if not isinstance(error, tf.errors.InternalError | tf.errors.UnknownError):
        return False
    return is_memory_error(str(error)) and device_failure(error, towers) is None


def is_memory_error(text: str) -> bool:
    """Return whether a GPU error message can mean that memory has run out."""
    return any(part in text.lower() for part in MEMORY_TEXTS)
