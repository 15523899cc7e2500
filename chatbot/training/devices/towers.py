"""Selects GPUs, and assigns towers (replicas of the model) to TensorFlow's logical devices.

`open_towers` must be called before TensorFlow is used, because CUDA reads CUDA_VISIBLE_DEVICES only once.
"""

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chatbot.display import align_columns, pluralize
from chatbot.errors import UserError
from chatbot.memory import keep_freed_memory, let_gpu_memory_grow
from chatbot.quiet import import_tensorflow
from chatbot.training.devices.gpus import Gpu, find_gpus, warn_about_used_memory

CPU_INFO = Path("/proc/cpuinfo")


class Parts(NamedTuple):
    """The logical devices of a model that is split across several devices, by part of the model."""

    encoder: str
    decoder: str
    projection: str  # also used for the embedding, which shares its matrix


@dataclasses.dataclass(frozen=True)
class Tower:
    """A replica of the model that processes its part of each batch.

    Attributes:
        name: The name shown in TensorBoard: gpu_<physical id> or cpu_<number>.
        device: TensorFlow's logical device, such as /GPU:0.
        model: The name of the hardware.
        memory: Total bytes of the device, including memory used by other processes; None if unknown.
        parts: The devices across which --model-parallel splits the replica; they replace `device`.
        virtual: Whether `device` is one of several logical devices on the same GPU.
        left: Bytes that were available when the towers were opened; None if unknown.
    """

    name: str
    device: str
    model: str
    memory: int | None
    parts: Parts | None = None
    virtual: bool = False
    left: int | None = None


def choose_gpus(requested: str | None = None, towers: int | None = None) -> list[Gpu]:
    """Return the GPUs to train on: the GPUs in --gpus, or by default all GPUs that CUDA_VISIBLE_DEVICES allows.

    Raises UserError if an id or --towers is invalid, or if one of several GPUs has MIG instances.
    """
    found = find_gpus()
    gpus = _visible_gpus(found) if requested is None else _requested_gpus(requested, found)
    if towers is not None and len(gpus) > 1 and towers != len(gpus):
        raise UserError(
            f"--towers {towers} with {len(gpus)} GPUs: each GPU runs one tower; omit --towers, or select one GPU"
        )
    split = [gpu for gpu in gpus if gpu.instances]
    if split and len(gpus) > 1:
        raise UserError(
            f"GPU {split[0].number} is split into MIG instances, and a CUDA process can use only one instance and no "
            "other GPU; leave it out of --gpus, or select an instance: CUDA_VISIBLE_DEVICES=MIG-..."
        )
    return gpus


def _requested_gpus(requested: str, found: list[Gpu]) -> list[Gpu]:
    """Return the GPUs whose ids are listed in --gpus."""
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


def _visible_gpus(found: list[Gpu]) -> list[Gpu]:
    """Return the GPUs and MIG instances listed in CUDA_VISIBLE_DEVICES, in order; all GPUs if it is not set."""
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
            f"CUDA_VISIBLE_DEVICES={visible}: a CUDA process can use only one MIG instance; list one, or train on "
            "whole GPUs with --gpus 0,1"
        )
    return chosen


def open_towers(gpus: list[Gpu], towers: int | None) -> list[Tower]:
    """Create TensorFlow's logical devices and return a tower for each device.

    Args:
        gpus: The GPUs to use. If the list is empty, the CPU is used.
        towers: The number of logical devices into which to split a single GPU or the CPU; None for no split.

    Raises:
        UserError: If TensorFlow cannot use the GPUs, if their memory is in use, or if TensorFlow is already initialised
            with fewer devices.
    """
    running = "tensorflow" in sys.modules
    if not running:  # otherwise, this process itself may use the memory
        warn_about_used_memory(gpus)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order of nvidia-smi; CUDA sorts by speed by default
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.id for gpu in gpus)
    if not gpus:
        keep_freed_memory()
    import_tensorflow()
    import tensorflow as tf

    tf.config.set_soft_device_placement(True)
    if not gpus:
        count = towers or 1
        (cpu,) = tf.config.list_physical_devices("CPU")
        _split_device(cpu, count, tf.config.LogicalDeviceConfiguration())
        return [Tower(f"cpu_{i}", f"/CPU:{i}", cpu_name(), None) for i in range(count)]

    physical = tf.config.list_physical_devices("GPU")
    if len(physical) != len(gpus):
        remedy = (
            "it is already initialised in this process; train in a new process"
            if running
            else "install CUDA's libraries with `make gpu`, update NVIDIA's driver, or train on the CPU: "
            "CUDA_VISIBLE_DEVICES= and --towers N"
        )
        raise UserError(f"TensorFlow sees {len(physical)} of the GPUs {', '.join(gpu.id for gpu in gpus)}; {remedy}")
    needed = min_capability(tf.sysconfig.get_build_info())
    for gpu in gpus:
        if gpu.capability is not None and gpu.capability < needed:  # TensorFlow would silently use the CPU
            own, minimum = (".".join(map(str, version)) for version in (gpu.capability, needed))
            raise UserError(
                f"GPU {gpu.id} ({gpu.name}) has compute capability {own}, but this TensorFlow needs {minimum}; select "
                "other GPUs with --gpus"
            )
    if len(gpus) == 1 and towers is not None and towers > 1:
        share = int(gpus[0].free * 0.9) // towers
        memory = gpus[0].memory // towers
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=share >> 20)
        _split_device(physical[0], towers, limit)
        name = f"gpu_{gpus[0].number}"
        return [Tower(f"{name}_{i}", f"/GPU:{i}", gpus[0].name, memory, None, True, share) for i in range(towers)]
    let_gpu_memory_grow()
    left = [gpu.memory if running else gpu.left for gpu in gpus]
    return [Tower(f"gpu_{g.number}", f"/GPU:{i}", g.name, g.memory, left=left[i]) for i, g in enumerate(gpus)]


def min_capability(build: Mapping[str, Any]) -> tuple[int, int]:
    """Return the lowest compute capability that a TensorFlow build supports.

    Args:
        build: TensorFlow's build information, which lists capabilities such as "sm_60" and "compute_90".
    """
    numbers = [re.sub(r"\D", "", entry) for entry in build.get("cuda_compute_capabilities", ())]
    return min(((int(number[:-1]), int(number[-1])) for number in numbers), default=(0, 0))


def _split_device(device: Any, towers: int, configuration: Any) -> None:
    """Split a physical device into one logical device per tower, all with the same configuration."""
    import tensorflow as tf

    try:
        tf.config.set_logical_device_configuration(device, [configuration] * towers)
    except RuntimeError:  # TensorFlow is already initialised in this process, for example by chatbot.load
        if len(tf.config.list_logical_devices(device.device_type)) < towers:
            raise UserError(
                f"--towers {towers}: TensorFlow already uses fewer devices in this process; train in a new process"
            ) from None


def table(towers: list[Tower]) -> str:
    """Return a table with one row per tower."""
    rows = [("tower", "physical", "logical", "name", "memory")]
    for i, tower in enumerate(towers):
        memory = "" if tower.memory is None else f"{tower.memory / 2**30:.1f} GiB"
        rows.append((str(i), tower.name, tower.device, tower.model, memory))
    return "\n".join(align_columns(rows, [True] * len(rows[0])))


def cpu_info(*names: str) -> str:
    """Return the first value in /proc/cpuinfo with one of these names, or ""."""
    with contextlib.suppress(OSError):  # the file exists only on Linux
        match = re.search(rf"^(?:{'|'.join(names)})\s*:(.*)$", CPU_INFO.read_text(encoding="utf-8"), re.MULTILINE)
        return match[1].strip() if match else ""
    return ""


def cpu_name() -> str:
    """Return the CPU model and the number of cores of this machine."""
    return f"{cpu_info('model name') or 'CPU'}, {os.cpu_count()} cores"


def spread(towers: Sequence[Tower]) -> list[Tower]:
    """Combine towers of one device into towers of several devices, for models that do not fit on one device.

    Each new tower has three devices, or two if the number of devices is not a multiple of 3. Raises UserError if this
    number is a multiple of neither 2 nor 3.
    """
    size = next((size for size in (3, 2) if len(towers) % size == 0), None)
    if size is None:
        raise UserError(
            f"--model-parallel: {pluralize(len(towers), 'device')} cannot be grouped in twos or threes; use 2, 3, 4, "
            "6, ... devices, with --gpus, or with --towers if there is no GPU"
        )
    spread_towers = []
    for i in range(0, len(towers), size):
        # With two devices, the decoder and the projection use the same one, because they exchange the most data.
        devices = towers[i : i + size]
        parts = Parts(devices[0].device, devices[1].device, devices[-1].device)
        name = "+".join(device.name for device in devices)
        spread_towers.append(Tower(name, parts.projection, devices[-1].model, None, parts))
    return spread_towers
