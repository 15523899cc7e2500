"""Limits of device memory, and splitting of batches that do not fit."""

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
from chatbot.model.loss import LossSize, max_logits_for
from chatbot.model.sequences import MULTIPLE
from chatbot.training.devices.failures import RESUME, is_memory_error
from chatbot.training.devices.towers import Tower
from chatbot.training.share import Prepared

# The size of a batch: the number of pairs, and the lengths of the longest source and the longest target.
Size = tuple[int, int, int]


def loss_size(settings: Settings, towers: Sequence[Tower], machines: int = 1) -> LossSize:
    """Return the maximum number of logits in memory, and the maximum number of target tokens in a micro-batch.

    Args:
        settings: The settings of the run.
        towers: The towers of this machine.
        machines: The number of machines, each with the same number of towers.
    """
    tokens = max_tokens(settings, len(towers) * machines)
    return LossSize(
        max_logits_for(min((tower.left for tower in towers if tower.left is not None), default=None)), tokens
    )


def min_memory(towers: Sequence[Tower]) -> int | None:
    """Return the smallest device memory in bytes, or None if all towers are on CPUs, whose memory is unknown."""
    return min((tower.memory for tower in towers if tower.memory is not None), default=None)


def max_tokens(settings: Settings, towers: int) -> int:
    """Return the maximum number of target tokens in a tower's micro-batch, including padding.

    Args:
        settings: The settings of the run.
        towers: The number of towers on all machines.
    """
    learning = settings.learning
    max_length = settings.model.max_length
    if learning.batch_tokens is not None:  # The number of pairs is rounded up, both per tower and per micro-batch.
        return math.ceil(learning.batch_tokens / towers) + 2 * max_length + MULTIPLE
    pairs_per_share = math.ceil(learning.batch_size * learning.accumulate / towers)
    return math.ceil(pairs_per_share / learning.accumulate) * max_length + MULTIPLE


class MemoryLimits:
    """Decides how a step is computed, based on the batch sizes that have fitted into device memory so far.

    A tower's part of a batch is split into micro-batches, called pieces, if it does not fit into memory.

    A step can run as a single graph, which is fastest, or as separate graphs for the gradients and for the update. With
    several replicas, the single graph must not run out of memory, because the other replicas would wait for the failed
    one forever. A new batch size is therefore first computed in separate graphs, where a failure is detected before
    replicas wait for each other. If that succeeds, the next batch of this size is a trial of the single graph. Each
    trial is recorded as a failure before it starts, so the record remains if the process hangs and is killed.

    Args:
        accumulate: The minimum number of micro-batches.

    Attributes:
        most_positions: The maximum number of tokens in a micro-batch, including source, target and padding; None until
            a device runs out of memory.
        too_large: The number of tokens, including padding, of the smallest batch that did not fit into memory as a
            single graph with several replicas.
        record: A callback that stores a new value of `too_large`. It is called before and after each trial.
    """

    def __init__(self, accumulate: int = 1) -> None:
        self._accumulate = accumulate
        self.most_positions: int | None = None
        self.too_large = math.inf
        self.record: Callable[[float], object] = lambda positions: None
        # The sizes of batches that have fitted into memory in separate graphs, and in a single graph.
        self.fitted = list[Size]()
        self.fitted_in_one_graph = list[Size]()

    def pieces(self, batch: GlobalBatch) -> int:
        """Return the number of micro-batches into which each tower's part of the batch is split."""
        if self.most_positions is None:
            return self._accumulate
        return max(self._accumulate, math.ceil(_positions(batch) / self.most_positions))

    def divide(self, error: tf.errors.OpError, prepared: Prepared, failures: int, weights_intact: bool) -> None:
        """Reduce the size of micro-batches after a batch ran out of memory.

        Args:
            error: The error raised by the step.
            prepared: The batch.
            failures: The number of failures of this batch so far, including the current one.
            weights_intact: Whether the failed step has left all weights unchanged.

        Raises:
            UserError: If weights may have changed, or each micro-batch already contains a single pair.
        """
        rows = _rows(prepared.batch)
        # Errors other than ResourceExhaustedError may have another cause, so their text is shown to the user.
        is_certain = isinstance(error, tf.errors.ResourceExhaustedError)
        lines = str(error).strip().splitlines()
        reason = next(filter(is_memory_error, lines), lines[0]).strip()[:150]
        details = () if is_certain else (reason,)
        if not weights_intact:
            raise UserError(
                f"out of memory while the weights were updated, at step {prepared.number}; free memory on the device, "
                f"then run it again: {RESUME}",
                details=details,
            ) from error
        if prepared.pieces >= rows:
            raise UserError(
                f"out of memory at step {prepared.number}, with one pair at a time; use a device with more memory "
                f"({RESUME}), or start another --attempt with a smaller --rnn-size",
                details=details,
            ) from error
        if self.most_positions is None:
            cause = "Out of memory" if is_certain else f"Possibly out of memory ({reason})"
            tqdm.write(
                f"{cause}: shares of this size are now split into pieces, without changing the batch size. To split "
                "them from the start, use --accumulate with a smaller --batch-size. This is printed only once."
            )
        # TensorFlow waits ten seconds for memory before each failure, so the number of micro-batches grows fast: 2, 8,
        # 64, 1024.
        self.most_positions = _positions(prepared.batch) // min(rows, 2**failures * prepared.pieces)
        self.fitted = []
        self.fitted_in_one_graph = []

    def fits(self, size: Size) -> None:
        """Record that a batch of this size has fitted into memory in separate graphs, without being split."""
        if not _contains_as_large(self.fitted, size):
            self.fitted.append(size)

    def fits_in_one_graph(self, size: Size) -> bool:
        """Return whether a batch at least this large has fitted into memory in a single graph."""
        return _contains_as_large(self.fitted_in_one_graph, size)

    def begin_trial(self, size: Size) -> bool:
        """Return whether to try a single graph with this batch size. If so, the trial is recorded as a failure."""
        positions = _positions_of(size)
        is_due = _contains_as_large(self.fitted, size) and positions < self.too_large
        if is_due:
            self.record(positions)
        return is_due

    def end_trial(self, size: Size, fitted: bool) -> None:
        """Record the outcome of a trial.

        Args:
            size: The size of the batch.
            fitted: Whether the batch has fitted into memory.
        """
        if fitted:
            self.fitted_in_one_graph.append(size)
            self.record(self.too_large)
        else:
            self.too_large = _positions_of(size)


def _contains_as_large(sizes: Sequence[Size], size: Size) -> bool:
    """Return whether any of the sizes is at least as large as `size` in every dimension."""
    return any(all(a >= b for a, b in zip(other, size, strict=True)) for other in sizes)


def _positions_of(size: Size) -> int:
    """Return the number of source and target tokens in a batch of this size, including padding."""
    pairs, source, target = size
    return pairs * (source + target)


def _rows(batch: GlobalBatch) -> int:
    """Return the largest number of pairs that a tower of this machine computes."""
    return max(len(share.source) for share in batch.shares)


def _positions(batch: GlobalBatch) -> int:
    """Return the largest number of tokens that a tower of this machine computes, including padding."""
    share = batch.shares[0]
    return _rows(batch) * (share.source.shape[1] + share.target_in.shape[1])


def read_too_large(path: Path, devices: str) -> float:
    """Read the size of the smallest batch that was too large for these devices; see `MemoryLimits.too_large`.

    Raises:
        UserError: If the file is damaged.
    """
    try:
        return float(read_json(path).get(devices, math.inf)) if path.exists() else math.inf
    except (OSError, ValueError, TypeError, AttributeError):
        raise UserError(f"{path}: damaged; delete this file") from None


def write_too_large(path: Path, devices: str, positions: float) -> None:
    """Store the size of the smallest batch that was too large for these devices. Deletes the file if there is none."""
    with contextlib.suppress(OSError):  # A full disk is reported when the next checkpoint is saved.
        if positions < math.inf:
            write_json(path, {devices: positions})
        else:
            path.unlink(missing_ok=True)
