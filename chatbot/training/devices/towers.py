"""The devices of the towers: from physical GPU ids to TensorFlow's logical devices, one or several for each.

Call `open_towers` before TensorFlow is used: CUDA reads CUDA_VISIBLE_DEVICES only once.
"""

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chatbot.display import aligned, counted
from chatbot.errors import UserError
from chatbot.memory import keep_freed_memory, let_gpu_memory_grow
from chatbot.quiet import import_tensorflow
from chatbot.training.devices.gpus import Gpu, warn_of_used_memory

CPU_INFO = Path("/proc/cpuinfo")


class Parts(NamedTuple):
    """The logical devices of a tower's parts, for a model that is spread over several devices."""

    encoder: str
    decoder: str
    projection: str  # and embedding, which is the same matrix


@dataclasses.dataclass(frozen=True)
class Tower:
    """The computation of one share of a batch, on one device or spread over several."""

    name: str  # gpu_<physical id> or cpu_<number>, as in TensorBoard
    device: str  # TensorFlow's logical device, such as /GPU:0
    model: str  # of the hardware
    memory: int | None  # bytes of the device, whatever other processes use; None if unknown
    parts: Parts | None = None  # with --model-parallel, the devices to use instead of `device`
    virtual: bool = False  # one of several logical devices of a GPU
    left: int | None = None  # bytes of the memory that other processes left when the devices were opened


def choose_gpus(requested: str | None, towers: int | None, found: list[Gpu]) -> list[Gpu]:
    """Return the GPUs to train on: those of --gpus, or by default all that CUDA_VISIBLE_DEVICES allows.

    Raises UserError for wrong ids, for a wrong --towers, and for several GPUs of which one has MIG instances.
    """
    gpus = _visible(found) if requested is None else _requested(requested, found)
    if towers is not None and len(gpus) > 1 and towers != len(gpus):
        raise UserError(
            f"--towers {towers} with {len(gpus)} GPUs: each GPU runs one tower; omit --towers, or select one GPU"
        )
    split = [gpu for gpu in gpus if gpu.instances]
    if split and len(gpus) > 1:
        raise UserError(
            f"GPU {split[0].number} is split into MIG instances, of which CUDA gives a process one, and no other GPU; "
            "leave it out of --gpus, or select an instance: CUDA_VISIBLE_DEVICES=MIG-..."
        )
    return gpus


def _requested(requested: str, found: list[Gpu]) -> list[Gpu]:
    """Return the GPUs of --gpus."""
    by_number = {gpu.number: gpu for gpu in found}
    if not re.fullmatch(r"\d+(,\d+)*", requested):
        raise UserError(
            f"--gpus {requested}: expected ids separated by commas, such as --gpus 0,1; "
            "CUDA_VISIBLE_DEVICES=MIG-... selects a MIG instance"
        )
    numbers = [int(i) for i in requested.split(",")]
    if len(set(numbers)) < len(numbers):
        raise UserError(f"--gpus {requested}: an id is repeated; list each GPU once")
    if not set(numbers) <= by_number.keys():
        available = ", ".join(map(str, by_number)) or "none"
        raise UserError(
            f"--gpus {requested}: requested {', '.join(map(str, numbers))}; found {available}. "
            "Use the ids of existing GPUs, or train on the CPU with --towers N"
        )
    return [by_number[i] for i in numbers]


def _visible(found: list[Gpu]) -> list[Gpu]:
    """Return the GPUs and MIG instances of CUDA_VISIBLE_DEVICES, in its order; all GPUs if it is not set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    chosen = []
    for entry in filter(None, (part.strip() for part in visible.split(","))):
        if entry == "-1":
            break
        match = [gpu for gpu in found if entry == str(gpu.number) or gpu.uuid.startswith(entry)]
        match += [part for gpu in found for part in gpu.instances if entry == part.uuid]
        if not match:
            raise UserError(f"CUDA_VISIBLE_DEVICES={visible}: found no GPU {entry}; select GPUs with --gpus 0,1")
        chosen.append(match[0])
    if len(chosen) > 1 and any(gpu.is_instance for gpu in chosen):
        raise UserError(
            f"CUDA_VISIBLE_DEVICES={visible}: CUDA gives a process a single MIG instance; name one, or train on whole "
            "GPUs with --gpus 0,1"
        )
    return chosen


def open_towers(gpus: list[Gpu], towers: int | None) -> list[Tower]:
    """Create TensorFlow's logical devices and return the tower of each.

    Without a GPU, or with a single one, the device is split into `towers` logical devices. Raises UserError if
    TensorFlow cannot use the GPUs, if their memory is in use, or if TensorFlow already computes on fewer devices.
    """
    running = "tensorflow" in sys.modules
    if not running:  # else the memory in use may be that of this process
        warn_of_used_memory(gpus)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # nvidia-smi's order; CUDA's default is by speed
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.id for gpu in gpus)
    if not gpus:
        keep_freed_memory()
    import_tensorflow()
    import tensorflow as tf

    tf.config.set_soft_device_placement(True)
    if not gpus:
        count = towers or 1
        (cpu,) = tf.config.list_physical_devices("CPU")
        _split(cpu, count, tf.config.LogicalDeviceConfiguration())
        return [Tower(f"cpu_{i}", f"/CPU:{i}", cpu_name(), None) for i in range(count)]

    physical = tf.config.list_physical_devices("GPU")
    if len(physical) != len(gpus):
        remedy = (
            "it already computes in this process; train in a new one"
            if running
            else "install CUDA's libraries with `make gpu`, update NVIDIA's driver, or train on the CPU: "
            "CUDA_VISIBLE_DEVICES= and --towers N"
        )
        raise UserError(f"TensorFlow sees {len(physical)} of the GPUs {', '.join(gpu.id for gpu in gpus)}; {remedy}")
    least = least_capability(tf.sysconfig.get_build_info())
    for gpu in gpus:
        if gpu.capability is not None and gpu.capability < least:  # TensorFlow lists it, and computes on the CPU
            own, needed = (".".join(map(str, version)) for version in (gpu.capability, least))
            raise UserError(
                f"GPU {gpu.id} ({gpu.name}) has compute capability {own}, and this TensorFlow needs {needed}; select "
                "other GPUs with --gpus"
            )
    if len(gpus) == 1 and towers is not None and towers > 1:
        share = int(gpus[0].free * 0.9) // towers
        memory = gpus[0].memory // towers
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=share >> 20)
        _split(physical[0], towers, limit)
        name = f"gpu_{gpus[0].number}"
        return [Tower(f"{name}_{i}", f"/GPU:{i}", gpus[0].name, memory, None, True, share) for i in range(towers)]
    let_gpu_memory_grow()
    left = [gpu.memory if running else gpu.left for gpu in gpus]
    return [Tower(f"gpu_{g.number}", f"/GPU:{i}", g.name, g.memory, left=left[i]) for i, g in enumerate(gpus)]


def least_capability(build: Mapping[str, Any]) -> tuple[int, int]:
    """Return the lowest compute capability that TensorFlow was built for; entries are such as sm_60 or compute_90."""
    numbers = [re.sub(r"\D", "", entry) for entry in build.get("cuda_compute_capabilities", ())]
    return min(((int(number[:-1]), int(number[-1])) for number in numbers), default=(0, 0))


def _split(device: Any, towers: int, configuration: Any) -> None:
    """Split a physical device into a logical device for each tower. configuration: of each logical device."""
    import tensorflow as tf

    try:
        tf.config.set_logical_device_configuration(device, [configuration] * towers)
    except RuntimeError:  # TensorFlow was used before in this process, for example by chatbot.load
        if len(tf.config.list_logical_devices(device.device_type)) < towers:
            raise UserError(
                f"--towers {towers}: TensorFlow already computes in this process, with fewer; train in a new process"
            ) from None


def table(towers: list[Tower]) -> str:
    """Return a table with one line for each tower."""
    rows = [("tower", "physical", "logical", "name", "memory")]
    for i, tower in enumerate(towers):
        memory = "" if tower.memory is None else f"{tower.memory / 2**30:.1f} GiB"
        rows.append((str(i), tower.name, tower.device, tower.model, memory))
    return "\n".join(aligned(rows, [True] * len(rows[0])))


def cpu_info(*names: str) -> str:
    """Return the value that Linux lists for the first CPU under one of these names, or ""."""
    with contextlib.suppress(OSError):  # another system
        listed = re.search(rf"^(?:{'|'.join(names)})\s*:(.*)$", CPU_INFO.read_text(encoding="utf-8"), re.MULTILINE)
        return listed[1].strip() if listed else ""
    return ""


def cpu_name() -> str:
    """Return the model and the number of cores of this machine's CPU."""
    return f"{cpu_info('model name') or 'CPU'}, {os.cpu_count()} cores"


def spread(towers: Sequence[Tower]) -> list[Tower]:
    """Group one-device towers into towers of three devices, or of two if their number is not a multiple of 3.

    For models that do not fit on one device (--model-parallel): the parts of a tower run one after another. Raises
    UserError if the number of devices is a multiple of neither.
    """
    size = next((size for size in (3, 2) if len(towers) % size == 0), None)
    if size is None:
        raise UserError(
            f"--model-parallel: {counted(len(towers), 'device')} cannot be grouped in twos or threes; use 2, 3, 4, 6, "
            "..., with --gpus, or with --towers if there is no GPU"
        )
    joined = []
    for i in range(0, len(towers), size):
        devices = towers[i : i + size]  # of two, the second has decoder and projection, between which most data passes
        parts = Parts(devices[0].device, devices[1].device, devices[-1].device)
        name = "+".join(device.name for device in devices)
        joined.append(Tower(name, parts.projection, devices[-1].model, None, parts))
    return joined
