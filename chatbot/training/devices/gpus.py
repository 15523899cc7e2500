"""The GPUs of this machine and their driver, as reported by NVIDIA's management library (NVML)."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pynvml

from chatbot.errors import UserError

# A GPU counts as idle if less than this fraction of its memory is used, because the driver and a desktop use some.
IDLE_FRACTION = 0.1
# Minimum free bytes that a GPU needs for CUDA's context, cuDNN and a model.
MIN_FREE = 1 << 30


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A physical GPU or a MIG instance.

    Attributes:
        number: The GPU id that nvidia-smi shows. A MIG instance has the id of its GPU.
        memory: Total memory in bytes.
        uuid: The UUID, which starts with "GPU-", or with "MIG-" for an instance.
        instances: The MIG instances of a GPU.
        capability: CUDA's compute capability; None if unknown.
        used: Bytes that were in use by any process when the driver was queried.
    """

    number: int
    name: str
    memory: int
    uuid: str
    instances: "tuple[Gpu, ...]" = ()
    capability: tuple[int, int] | None = None
    used: int = 0

    @property
    def is_instance(self) -> bool:
        """Whether this is a MIG instance."""
        return self.uuid.startswith("MIG-")

    @property
    def id(self) -> str:
        """The entry for CUDA_VISIBLE_DEVICES: the number of a GPU, or the UUID of a MIG instance."""
        return self.uuid if self.is_instance else str(self.number)

    @property
    def free(self) -> int:
        """The bytes that were free when the driver was queried."""
        return self.memory - self.used

    @property
    def left(self) -> int:
        """The bytes available to this process. The memory of an idle GPU counts as completely free."""
        return self.memory if self.used <= IDLE_FRACTION * self.memory else self.free


def find_gpus() -> list[Gpu]:
    """Return the GPUs of this machine that respond to NVML. Without a driver, the list is empty."""
    return [gpu for gpu in _query_gpus() if isinstance(gpu, Gpu)]


def silent_gpus() -> dict[int, str]:
    """Return a dictionary from the id of each unresponsive GPU to NVML's error message."""
    return {i: answer for i, answer in enumerate(_query_gpus()) if isinstance(answer, str)}


def _query_gpus() -> list[Gpu | str]:
    """Return, for each GPU, its description or NVML's error message."""
    answers: list[Gpu | str] = []
    with _nvml() as numbers:
        for i in numbers:
            try:
                answers.append(_query_gpu(i))
            except pynvml.NVMLError as error:
                answers.append(str(error))
    return answers


def warn_without_gpu(gpus: Sequence[Gpu]) -> None:
    """Print a warning to standard error if a run uses no GPU."""
    if not gpus:
        print(f"NO GPU: training on the CPU.{nvml_error()}", file=sys.stderr)


def warn_about_used_memory(gpus: Sequence[Gpu]) -> None:
    """Warn about GPUs that other processes use. Raises UserError if a GPU has too little free memory for a model."""
    for gpu in gpus:
        if gpu.left == gpu.memory:
            continue
        in_use = f"GPU {gpu.id}: other processes use {gpu.used / 2**30:.1f} of its {gpu.memory / 2**30:.1f} GiB"
        if gpu.free < MIN_FREE:
            others = ",".join(other.id for other in find_gpus() if other.free >= MIN_FREE and not other.instances)
            choice = f", or select GPUs with enough memory: --gpus {others}" if others else ""
            raise UserError(f"{in_use} (see `nvidia-smi`); end them{choice}")
        print(f"Warning: {in_use} (see `nvidia-smi`); end them, or select other GPUs with --gpus", file=sys.stderr)


def nvml_error() -> str:
    """Return a sentence about why NVML cannot be initialised, with a leading space.

    The result is "" if NVML can be initialised, or if there is no driver.
    """
    try:
        with contextlib.suppress(pynvml.NVMLError_LibraryNotFound):
            pynvml.nvmlInit()
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:  # for example, if the machine must be rebooted after a driver update
        return f" NVIDIA's driver reports: {error}."
    return ""


@contextlib.contextmanager
def _nvml() -> Iterator[range]:
    """Initialise NVML and yield the range of GPU numbers, which is empty without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield range(0)
        return
    try:
        yield range(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def _query_gpu(number: int) -> Gpu:
    """Query a GPU. Raises NVMLError if it does not respond."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    capability = None
    with contextlib.suppress(pynvml.NVMLError):
        capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    instances = tuple(_query_instances(number, handle))
    return Gpu(number, instances=instances, capability=capability, **_query_fields(handle))


def _query_instances(number: int, gpu: Any) -> Iterator[Gpu]:
    """Yield the MIG instances of the GPU with this NVML handle."""
    try:
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    except pynvml.NVMLError:  # old drivers do not support MIG
        return
    for i in range(count):
        with contextlib.suppress(pynvml.NVMLError):  # not every index has an instance
            yield Gpu(number, **_query_fields(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i)))


def _query_fields(handle: Any) -> dict[str, Any]:
    """Query the fields of `Gpu` that apply to both GPUs and MIG instances."""
    name = pynvml.nvmlDeviceGetName(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"name": name, "memory": memory.total, "used": memory.used, "uuid": pynvml.nvmlDeviceGetUUID(handle)}
