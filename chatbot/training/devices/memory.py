"""The memory of the devices: how many logits a tower computes at a time, and the peak during a training step."""

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.durable import read_json, write_json
from chatbot.errors import UserError
from chatbot.model.loss import LossSize, logits_in
from chatbot.model.sequences import MULTIPLE
from chatbot.training.devices.towers import Tower


def loss_size(settings: Settings, towers: Sequence[Tower], machines: int = 1) -> LossSize:
    """Return the size of the loss on these towers. towers: of this machine; each machine has as many."""
    tokens = most_tokens(settings, len(towers) * machines)
    return LossSize(logits_in(min((tower.left for tower in towers if tower.left is not None), default=None)), tokens)


def least_memory(towers: Sequence[Tower]) -> int | None:
    """Return the bytes of the device that has the least; None for CPUs, whose memory is not known."""
    return min((tower.memory for tower in towers if tower.memory is not None), default=None)


def most_tokens(settings: Settings, towers: int) -> int:
    """Return the most target tokens of a piece of a tower's share, fillers included. towers: of all machines."""
    learning = settings.learning
    longest = settings.model.max_length
    if learning.batch_tokens is not None:  # the pairs of a share, and of a piece, are rounded up
        return math.ceil(learning.batch_tokens / towers) + 2 * longest + MULTIPLE
    of_share = math.ceil(learning.batch_size * learning.accumulate / towers)
    return math.ceil(of_share / learning.accumulate) * longest + MULTIPLE


def read_too_large(path: Path, devices: str) -> float:
    """Return `Synchronous.too_large` as an earlier process has recorded it for these devices. Raises UserError."""
    try:
        return float(read_json(path).get(devices, math.inf)) if path.exists() else math.inf
    except (OSError, ValueError, TypeError, AttributeError):
        raise UserError(f"{path}: damaged; remove it") from None


def write_too_large(path: Path, devices: str, positions: float) -> None:
    """Record `Synchronous.too_large` in a file of the attempt, which is there if one graph has failed."""
    with contextlib.suppress(OSError):  # such as a full disk, which checkpoints report
        if positions < math.inf:
            write_json(path, {devices: positions})
        else:
            path.unlink(missing_ok=True)


def peak_growth(towers: Sequence[Tower], action: Callable[[], object]) -> list[int] | None:
    """Return the bytes by which each GPU's memory grows at most during an action; None for towers on the CPU."""
    if not all("GPU" in tower.device for tower in towers):
        return None
    devices = [tower.device.removeprefix("/") for tower in towers]
    for device in devices:
        tf.config.experimental.reset_memory_stats(device)
    before = [tf.config.experimental.get_memory_info(device)["current"] for device in devices]
    action()
    after = [tf.config.experimental.get_memory_info(device)["peak"] for device in devices]
    return [max(0, peak - current) for peak, current in zip(after, before, strict=True)]
