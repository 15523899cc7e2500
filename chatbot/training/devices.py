"""Which devices carry the towers: physical GPU ids to TensorFlow's logical devices.

TensorFlow must not have been imported before `choose_gpus`: CUDA reads the visibility once.
"""

import dataclasses
import os
import re
from typing import NamedTuple

import pynvml

from chatbot.errors import UserError
from chatbot.memory import keep_freed_memory
from chatbot.quiet import import_tensorflow


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi shows it."""

    number: int
    name: str
    memory: int  # bytes
    uuid: str


class Parts(NamedTuple):
    """The devices of one tower whose model is spread over several."""

    encoder: str
    decoder: str
    projection: str  # and the embedding, which is the same matrix


@dataclasses.dataclass(frozen=True)
class Tower:
    """Where one tower runs and what it is called in TensorBoard."""

    name: str  # gpu_<physical id> or cpu_<number>
    device: str  # TensorFlow's logical device, /GPU:0
    model: str  # what the hardware is called
    memory: int | None  # bytes, where it is known
    parts: Parts | None = None  # where it runs instead, with --model-parallel


def find_gpus() -> list[Gpu]:
    """The machine's GPUs by NVIDIA's management library; none without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [(i, pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
        return [
            Gpu(
                number=i,
                name=pynvml.nvmlDeviceGetName(handle),
                memory=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                uuid=pynvml.nvmlDeviceGetUUID(handle),
            )
            for i, handle in handles
        ]
    finally:
        pynvml.nvmlShutdown()


def choose_gpus(asked: str | None, towers: int | None, found: list[Gpu]) -> list[Gpu]:
    """The GPUs to train on: those asked for by id, or all that are visible when nothing was asked.

    Raises UserError for ids that are malformed, repeated or not there, or that --towers contradicts.
    """
    there = {gpu.number: gpu for gpu in found}
    if asked is None:
        visible = _visible(found)
        if towers is None or len(visible) <= 1:
            return visible
        if towers > len(visible):
            raise UserError(
                f"--towers {towers} with {len(visible)} GPUs: a GPU carries one tower; leave --towers out, "
                "or name one GPU to split"
            )
        return visible[:towers]
    if not re.fullmatch(r"\d+(,\d+)*", asked):
        raise UserError(f"--gpus {asked}: ids separated by commas expected, such as --gpus 0,1")
    numbers = [int(i) for i in asked.split(",")]
    if len(set(numbers)) < len(numbers):
        raise UserError(f"--gpus {asked}: an id stands twice; name each GPU once")
    if not set(numbers) <= there.keys():
        have = ", ".join(str(i) for i in there) or "none"
        raise UserError(
            f"--gpus {asked}: asked for {', '.join(map(str, numbers))}; found {have}. "
            "Name GPUs that are there, or train on the CPU with --towers N"
        )
    if towers is not None and len(numbers) > 1 and towers != len(numbers):
        raise UserError(
            f"--towers {towers} with {len(numbers)} GPUs: a GPU carries one tower; leave --towers out, or name one GPU"
        )
    return [there[i] for i in numbers]


def _visible(found: list[Gpu]) -> list[Gpu]:
    """The GPUs that a scheduler left visible, in its order; all of them when it said nothing."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    chosen = []
    for entry in filter(None, (part.strip() for part in visible.split(","))):
        match = [gpu for gpu in found if entry == str(gpu.number) or gpu.uuid.startswith(entry)]
        if entry == "-1":
            break
        if not match:
            raise UserError(f"CUDA_VISIBLE_DEVICES={visible}: no GPU is called {entry}; name GPUs with --gpus 0,1")
        chosen.append(match[0])
    return chosen


def open_towers(gpus: list[Gpu], towers: int | None, log_placement: bool = False) -> list[Tower]:
    """Make TensorFlow's logical devices and say which tower runs on which.

    Sets GPU visibility, memory growth and soft placement. With no GPU, or one, the device is split
    into `towers` logical devices. Raises UserError when TensorFlow does not see the chosen GPUs.
    """
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # nvidia-smi's order; CUDA's own is by speed
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu.number) for gpu in gpus)
    if not gpus:
        keep_freed_memory()
    import_tensorflow()
    import tensorflow as tf

    tf.config.set_soft_device_placement(True)
    tf.debugging.set_log_device_placement(log_placement)
    if not gpus:
        count = towers or 1
        (cpu,) = tf.config.list_physical_devices("CPU")
        split = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        tf.config.set_logical_device_configuration(cpu, split)
        return [Tower(f"cpu_{i}", f"/CPU:{i}", _cpu_name(), None) for i in range(count)]

    physical = tf.config.list_physical_devices("GPU")
    if len(physical) != len(gpus):
        raise UserError(
            f"TensorFlow sees {len(physical)} of the GPUs {', '.join(str(g.number) for g in gpus)}; "
            "install the CUDA libraries with `make gpu`, or train on the CPU: CUDA_VISIBLE_DEVICES= and --towers N"
        )
    if len(gpus) == 1 and towers is not None and towers > 1:
        share = int(gpus[0].memory * 0.9) // towers
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=share >> 20)
        tf.config.set_logical_device_configuration(physical[0], [limit] * towers)
        return [Tower(f"gpu_{gpus[0].number}_{i}", f"/GPU:{i}", gpus[0].name, share) for i in range(towers)]
    for device in physical:
        tf.config.experimental.set_memory_growth(device, True)
    return [Tower(f"gpu_{g.number}", f"/GPU:{i}", g.name, g.memory) for i, g in enumerate(gpus)]


def table(towers: list[Tower]) -> str:
    """The towers, one a line: tower, physical id, logical device, name, memory."""
    rows = [("tower", "physical", "logical", "name", "memory")]
    for i, tower in enumerate(towers):
        memory = "" if tower.memory is None else f"{tower.memory / 2**30:.1f} GiB"
        rows.append((str(i), tower.name, tower.device, tower.model, memory))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            name = next(names, "CPU")
    except OSError:
        name = "CPU"
    return f"{name}, {os.cpu_count()} cores"
