"""The memory of the devices of towers at its peak, during a training step."""

from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from chatbot.training.devices import Tower

PROCESS = Path("/proc/self")
# What Linux takes to forget the peak of a process's memory.
FORGET_PEAK = "5"


def peak_growth(towers: Sequence[Tower], action: Callable[[], object]) -> list[int] | None:
    """Return the bytes by which each tower's memory grows at most during an action; None if that cannot be measured.

    A GPU reports it. All towers of a CPU share the memory of the process, which Linux reports, and have equal parts.
    """
    if all("GPU" in tower.device for tower in towers):
        devices = [tower.device.removeprefix("/") for tower in towers]
        for device in devices:
            tf.config.experimental.reset_memory_stats(device)
        before = [tf.config.experimental.get_memory_info(device)["current"] for device in devices]
        action()
        after = [tf.config.experimental.get_memory_info(device)["peak"] for device in devices]
        return [max(0, peak - current) for peak, current in zip(after, before, strict=True)]
    try:
        (PROCESS / "clear_refs").write_text(FORGET_PEAK)
        resident = process_memory("VmRSS")
        action()
        return [max(0, process_memory("VmHWM") - resident) // len(towers)] * len(towers)
    except OSError:  # not Linux
        action()
        return None


def process_memory(name: str) -> int:
    """Return a value of this process in bytes: VmRSS, its resident memory, or VmHWM, the peak. Raises OSError."""
    lines = (PROCESS / "status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
