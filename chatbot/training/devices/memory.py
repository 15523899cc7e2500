"""The memory of the devices: how many logits a tower computes at a time, and the peak during a training step."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.model.loss import MOST_ELEMENTS, LossSize, logits_in
from chatbot.model.sequences import MULTIPLE
from chatbot.training.devices.towers import Tower

# Linux's reports on this process.
PROCESS = Path("/proc/self")
# What Linux takes to forget the peak of a process's memory.
FORGET_PEAK = "5"


def loss_size(settings: Settings, towers: Sequence[Tower], machines: int = 1) -> LossSize:
    """Return the size of the loss on these towers. towers: of this machine; each machine has as many."""
    memories = [tower.memory for tower in towers if tower.memory is not None]
    return LossSize(logits_in(min(memories, default=None)), most_tokens(settings, len(towers) * machines))


def check_sampled_logits(settings: Settings, tokens: int) -> None:
    """Raise UserError when a sampled softmax, which has no chunks, has more logits than kernels can index."""
    logits = 0 if settings.model.sampled_softmax is None else tokens * (1 + settings.model.sampled_softmax)
    if logits > MOST_ELEMENTS:
        raise UserError(
            f"--sampled-softmax: {logits:,} logits of a tower's share at once, more than {MOST_ELEMENTS:,}; "
            "use a smaller --batch-size, with --accumulate"
        )


def most_tokens(settings: Settings, towers: int) -> int:
    """Return the most target tokens of a piece of a tower's share, fillers included. towers: of all machines."""
    learning, longest = settings.learning, settings.model.max_length
    if learning.batch_tokens is not None:  # the pairs of a share, and of a piece, are rounded up
        return math.ceil(learning.batch_tokens / towers) + 2 * longest + MULTIPLE
    of_share = math.ceil(learning.batch_size * learning.accumulate / towers)
    return math.ceil(of_share / learning.accumulate) * longest + MULTIPLE


def peak_growth(towers: Sequence[Tower], action: Callable[[], object]) -> list[int] | None:
    """Return the bytes by which each tower's memory grows at most during an action; None if that is not known."""
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
