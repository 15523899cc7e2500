"""The memory of the devices: how much is computed at a time, and how a step that runs out of it is divided."""

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf
from tqdm import tqdm

from chatbot.config.training import Settings
from chatbot.corpus.batches import GlobalBatch
from chatbot.durable import read_json, write_json
from chatbot.errors import UserError
from chatbot.model.loss import LossSize, logits_in
from chatbot.model.sequences import MULTIPLE
from chatbot.training.devices.failures import RESUME, is_of_memory
from chatbot.training.devices.towers import Tower
from chatbot.training.share import Prepared

# The pairs of a batch, and the lengths of its longest source and target.
Size = tuple[int, int, int]


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


class MemoryLimits:
    """What the memory of the devices has been enough for in this process, and so how a step is computed.

    A share is divided into pieces where a whole one is too large. With several replicas, memory must not run out in the
    one graph of a step, since the replicas that have enough would wait in the exchange for ever. So the first batch of
    a size takes several graphs, in which no replica waits for another one before all have computed their gradients. The
    one graph needs more memory. So its first run for a size is recorded: a process that must be ended then has failed.

    accumulate: the fewest pieces. most_positions: of a piece of a share, source and target together, since a device ran
    out of memory with more; None before. too_large: the positions of the smallest batch that had no memory in one graph
    of several replicas. record: called with it before a first run, as if that failed, and after it.
    """

    def __init__(self, accumulate: int = 1) -> None:
        self._accumulate = accumulate
        self.most_positions: int | None = None
        self.too_large = math.inf
        self.record: Callable[[float], object] = lambda positions: None
        # The sizes of batches that did not run out of memory in several graphs, and in one graph.
        self.fitted = list[Size]()
        self.fitted_at_once = list[Size]()

    def pieces(self, batch: GlobalBatch) -> int:
        """Return the number of pieces of each share, a function of the batch and `most_positions` alone."""
        if self.most_positions is None:
            return self._accumulate
        return max(self._accumulate, math.ceil(_positions(batch) / self.most_positions))

    def divide(self, error: tf.errors.OpError, prepared: Prepared, failures: int, weights_intact: bool) -> None:
        """Take smaller pieces after a batch has run out of memory. failures: with this batch, this one included.

        Raises UserError if the weights may have changed, or if a piece is a single pair already.
        """
        rows = _rows(prepared.batch)
        # The cause of another error than ResourceExhaustedError is less certain, so the user sees its text.
        certain = isinstance(error, tf.errors.ResourceExhaustedError)
        lines = str(error).strip().splitlines()
        reason = next(filter(is_of_memory, lines), lines[0]).strip()[:150]
        details = () if certain else (reason,)
        if not weights_intact:
            raise UserError(
                f"out of memory while the weights were updated, at step {prepared.number}; free memory on the device: "
                f"then {RESUME}",
                details=details,
            ) from error
        if prepared.pieces >= rows:
            raise UserError(
                f"out of memory at step {prepared.number}, with one pair at a time; {RESUME} where there is more "
                "memory, or start another --attempt with a smaller --rnn-size",
                details=details,
            ) from error
        if self.most_positions is None:
            cause = "Out of memory" if certain else f"Perhaps out of memory ({reason})"
            tqdm.write(
                f"{cause}: shares as large as this one are now split into pieces; the batch size stays the same. Shown "
                "once. --accumulate with a smaller --batch-size splits shares from the start."
            )
        # 2, 8, 64, 1024 pieces: TensorFlow waits for memory for ten seconds before it fails.
        self.most_positions = _positions(prepared.batch) // min(rows, 2**failures * prepared.pieces)
        self.fitted = []
        self.fitted_at_once = []

    def fits(self, size: Size) -> None:
        """Note that a batch of this size had memory in several graphs, as a whole."""
        if not _has_as_large(self.fitted, size):
            self.fitted.append(size)

    def fits_at_once(self, size: Size) -> bool:
        """Return whether one graph of several replicas has had memory for a batch of this size."""
        return _has_as_large(self.fitted_at_once, size)

    def begin_trial(self, size: Size) -> bool:
        """Return whether one graph of several replicas is to be tried, and record that it is."""
        positions = _positions_of(size)
        is_due = _has_as_large(self.fitted, size) and positions < self.too_large
        if is_due:
            self.record(positions)
        return is_due

    def end_trial(self, size: Size, fitted: bool) -> None:
        """Note how the trial has ended."""
        if fitted:
            self.fitted_at_once.append(size)
            self.record(self.too_large)
        else:
            self.too_large = _positions_of(size)


def _has_as_large(sizes: Sequence[Size], size: Size) -> bool:
    """Return whether one of the sizes is at least as large in every dimension."""
    return any(all(a >= b for a, b in zip(other, size, strict=True)) for other in sizes)


def _positions_of(size: Size) -> int:
    """Return the padded positions of a batch of this size."""
    pairs, source, target = size
    return pairs * (source + target)


def _rows(batch: GlobalBatch) -> int:
    """Return the pairs of the largest share of this machine."""
    return max(len(share.source) for share in batch.shares)


def _positions(batch: GlobalBatch) -> int:
    """Return the padded positions of the largest share of this machine, source and target together."""
    share = batch.shares[0]
    return _rows(batch) * (share.source.shape[1] + share.target_in.shape[1])


def read_too_large(path: Path, devices: str) -> float:
    """Return `MemoryLimits.too_large` as an earlier process has recorded it for these devices. Raises UserError."""
    try:
        return float(read_json(path).get(devices, math.inf)) if path.exists() else math.inf
    except (OSError, ValueError, TypeError, AttributeError):
        raise UserError(f"{path}: damaged; remove it") from None


def write_too_large(path: Path, devices: str, positions: float) -> None:
    """Record `MemoryLimits.too_large` in a file of the attempt, which is there if one graph has failed."""
    with contextlib.suppress(OSError):  # such as a full disk, which checkpoints report
        if positions < math.inf:
            write_json(path, {devices: positions})
        else:
            path.unlink(missing_ok=True)
