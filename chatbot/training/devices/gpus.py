"""The GPUs of this machine and their driver, as NVIDIA's management library (NVML) reports them."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pynvml

from chatbot.errors import UserError

# The driver and a desktop use less than this share of a GPU's memory.
USUAL_SHARE = 0.1
# With less free memory, in bytes, a GPU has no room for CUDA's context, cuDNN and a model.
LEAST_FREE = 1 << 30


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A physical GPU, with the id that nvidia-smi shows, or a MIG instance of one."""

    number: int
    name: str
    memory: int  # bytes
    uuid: str  # GPU-..., or MIG-... of an instance
    instances: "tuple[Gpu, ...]" = ()  # the MIG instances of a GPU
    capability: tuple[int, int] | None = None  # CUDA's compute capability; None if unknown
    used: int = 0  # bytes of the memory that any process used when the driver was asked

    @property
    def is_instance(self) -> bool:
        """Whether this is a MIG instance."""
        return self.uuid.startswith("MIG-")

    @property
    def id(self) -> str:
        """The entry of CUDA_VISIBLE_DEVICES; an instance has no number."""
        return self.uuid if self.is_instance else str(self.number)

    @property
    def free(self) -> int:
        """The bytes that no process used when the driver was asked."""
        return self.memory - self.used

    @property
    def left(self) -> int:
        """The bytes that other processes leave: all, whatever the driver takes, where none computes on the GPU."""
        return self.memory if self.used <= USUAL_SHARE * self.memory else self.free


def find_gpus() -> list[Gpu]:
    """Return the GPUs of this machine that answer; none without a driver."""
    return [gpu for gpu in _answers() if isinstance(gpu, Gpu)]


def silent_gpus() -> dict[int, str]:
    """Return the GPUs that do not answer, such as one that has fallen off the bus: for each number, NVML's reason."""
    return {i: answer for i, answer in enumerate(_answers()) if isinstance(answer, str)}


def _answers() -> list[Gpu | str]:
    """Return each GPU, or NVML's reason where it does not answer."""
    answers: list[Gpu | str] = []
    with _nvml() as numbers:
        for i in numbers:
            try:
                answers.append(_gpu(i))
            except pynvml.NVMLError as error:
                answers.append(str(error))
    return answers


def warn_without_gpu(found: Sequence[Gpu]) -> None:
    """Print on standard error that a run without a GPU is slow. found: the GPUs that it uses."""
    if not found:
        print(f"NO GPU: training on the CPU.{nvml_error()}", file=sys.stderr)


def warn_of_used_memory(gpus: Sequence[Gpu]) -> None:
    """Print on standard error which GPUs other processes use. Raises UserError if one has no room for a model."""
    for gpu in gpus:
        if gpu.left == gpu.memory:
            continue
        in_use = f"GPU {gpu.id} has {gpu.used / 2**30:.1f} of {gpu.memory / 2**30:.1f} GiB in use by other processes"
        if gpu.free < LEAST_FREE:
            others = ",".join(other.id for other in find_gpus() if other.free >= LEAST_FREE and not other.instances)
            choice = f", or select GPUs with enough memory: --gpus {others}" if others else ""
            raise UserError(f"{in_use}, which `nvidia-smi` shows; end them{choice}")
        print(f"Warning: {in_use}, which `nvidia-smi` shows; end them, or select others with --gpus", file=sys.stderr)


def nvml_error() -> str:
    """Return why NVML cannot be opened, as a sentence that follows another; "" if it can, or without a driver."""
    try:
        with contextlib.suppress(pynvml.NVMLError_LibraryNotFound):
            pynvml.nvmlInit()
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:  # such as a driver that was updated and needs a restart of the machine
        return f" NVIDIA's driver reports: {error}."
    return ""


@contextlib.contextmanager
def _nvml() -> Iterator[range]:
    """Open NVML, and give the numbers of all GPUs; none without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield range(0)
        return
    try:
        yield range(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def _gpu(number: int) -> Gpu:
    """Return a GPU. Raises NVMLError if it does not answer."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    capability = None
    with contextlib.suppress(pynvml.NVMLError):
        capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    return Gpu(number, instances=tuple(_instances(number, handle)), capability=capability, **_description(handle))


def _instances(number: int, gpu: Any) -> Iterator[Gpu]:
    """Yield the MIG instances of a GPU. gpu: its handle."""
    try:
        most = pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    except pynvml.NVMLError:  # an old driver
        return
    for i in range(most):
        with contextlib.suppress(pynvml.NVMLError):  # fewer instances than the GPU could have
            yield Gpu(number, **_description(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i)))


def _description(handle: Any) -> dict[str, Any]:
    """Return what is known of a GPU and of an instance."""
    name = pynvml.nvmlDeviceGetName(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"name": name, "memory": memory.total, "used": memory.used, "uuid": pynvml.nvmlDeviceGetUUID(handle)}
