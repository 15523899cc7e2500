"""What an error of TensorFlow says of the devices: a GPU has failed, or a device is out of memory.

A failure of cuDNN may be a lack of memory, too.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence

import tensorflow as tf

from chatbot.errors import LostError, UserError
from chatbot.training.devices.gpus import silent_gpus
from chatbot.training.devices.towers import Tower

RESUME = "the same command resumes from the last checkpoint"

# The errors of CUDA after which its documentation asks for a new process, or which pass by themselves: those of kernels
# and memory, of links and external devices, and of services that start (MPS, the fabric manager). Another error is the
# same in every process. docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
MENDED_BY_RESTART = {
    *("ASSERT", "CONTAINED", "CONTEXT_IS_DESTROYED", "DEINITIALIZED", "DEVICE_UNAVAILABLE", "ECC_UNCORRECTABLE"),
    *("EXTERNAL_DEVICE", "HARDWARE_STACK_ERROR", "ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION", "INVALID_ADDRESS_SPACE"),
    *("INVALID_PC", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "MISALIGNED_ADDRESS", "MPS_CLIENT_TERMINATED"),
    *("MPS_CONNECTION_FAILED", "MPS_RPC_FAILURE", "MPS_SERVER_NOT_READY", "NVLINK_UNCORRECTABLE", "OPERATING_SYSTEM"),
    *("SYSTEM_NOT_READY", "TENSOR_MEMORY_LEAK", "UNKNOWN"),
}
# What TensorFlow's errors say of a GPU that has failed. CUDA reports an error of a kernel at any later call, under the
# name of the error (github.com/tensorflow/tensorflow/issues/25866, 41891, 46247), as an InternalError; a GPU that has
# fallen off the bus is CUDA_ERROR_UNKNOWN (issues/27281), or appears as the second text alone (issues/45901). NCCL's
# text, of an UnknownError, is that of issues/59890.
CUDA_ERROR = re.compile(r"CUDA_ERROR_(?!OUT_OF_MEMORY)(\w+)")
FAILURES = re.compile(
    r"(GPU sync failed|Could not synchronize CUDA stream|GPU is lost|unspecified launch failure"
    r"|an illegal memory access was encountered|uncorrectable ECC error encountered"
    r"|(Error invoking NCCL: )?unhandled cuda error)",
    re.IGNORECASE,
)
# Memory that runs out on a GPU, and errors of other machines.
NOT_HERE = re.compile(r"out of memory|Collective ops is aborted by", re.IGNORECASE)
# Texts of an InternalError or UnknownError on a GPU that lacks memory, in lower case; TensorFlow 2.21 has them all.
# cuDNN's recurrent kernels report all of their failures as the first two, and their status only in the log, as an error
# (github.com/tensorflow/tensorflow/issues/39453). A failed copy to the device is the text of issues/60401; the
# allocators of cuDNN, CUDA and XLA write the last ones.
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
    """Raise a GPU's failure as an error that names it (`device_failure`), wherever TensorFlow reports it."""
    try:
        yield
    except tf.errors.OpError as error:
        if failure := device_failure(error, towers):
            raise failure from error
        raise


def device_failure(error: tf.errors.OpError, towers: Sequence[Tower]) -> UserError | None:
    """Return the error to raise for a GPU of these towers that has failed; None if no GPU is the cause.

    A GPU that does not answer NVML is the cause. If all answer, it may be any: TensorFlow names the device that noticed
    the failure. It is a LostError if the run may succeed when it is started again.
    """
    numbers = gpu_numbers(towers)
    text = str(error)
    if not numbers:
        return None
    if lost := lost_gpu(towers):
        return lost
    cuda = CUDA_ERROR.search(text)
    cause = cuda or FAILURES.search(text)
    if cause is None or NOT_HERE.search(text):
        return None
    suspects = f"GPU {numbers[0]}" if len(numbers) == 1 else f"one of the GPUs {', '.join(map(str, numbers))}"
    if cuda and cuda[1] not in MENDED_BY_RESTART:
        return UserError(
            f"{suspects} refused a computation ({cuda.group()}), and would again: update NVIDIA's driver and CUDA "
            "(`make gpu`), or select others with --gpus"
        )
    return _device_error(f"{suspects} failed ({cause.group()})")


def lost_gpu(towers: Sequence[Tower]) -> LostError | None:
    """Return the error that names the first GPU of these towers that does not answer NVML; None if all answer."""
    silent = silent_gpus()
    lost = next((number for number in gpu_numbers(towers) if number in silent), None)
    return None if lost is None else _device_error(f"GPU {lost} does not answer ({silent[lost]})")


def gpu_numbers(towers: Sequence[Tower]) -> list[int]:
    """Return the numbers of the physical GPUs of the towers, each once."""
    return [*dict.fromkeys(int(number) for tower in towers for number in re.findall(r"gpu_(\d+)", tower.name))]


def _device_error(what: str) -> LostError:
    return LostError(f"{what}; {RESUME}. `dmesg` may say why (Xid); --gpus can leave it out")


def is_out_of_memory(error: tf.errors.OpError, towers: Sequence[Tower] = ()) -> bool:
    """Return whether a device is out of memory; an uncertain error is not, if one of these towers' GPUs has failed."""
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return True
    if not isinstance(error, tf.errors.InternalError | tf.errors.UnknownError):
        return False
    return is_of_memory(str(error)) and device_failure(error, towers) is None


def is_of_memory(text: str) -> bool:
    """Return whether the text of an error on a GPU may be that of a lack of memory."""
    return any(part in text.lower() for part in MEMORY_TEXTS)
