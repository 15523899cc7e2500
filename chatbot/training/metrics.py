"""The metrics of the steps between two logs: their times on the host, and their results, which a thread reads."""

import collections
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.corpus.vocabulary import PAD
from chatbot.training.share import COPIED_AHEAD, Prepared
from chatbot.training.variable_update import StepResult, unpacked_results

# The metrics of a window of steps, by its results.
Record = Callable[[Sequence[StepResult]], dict[str, Any]]


class Window:
    """Times the steps between two logs, waits for their batches, and begins to copy them to the devices."""

    def __init__(
        self, batches: Generator[Prepared, None, None], begin_copies: Callable[[Prepared], None] = lambda _: None
    ) -> None:
        self._batches = batches
        self._begin_copies = begin_copies
        self._copied: collections.deque[Prepared] = collections.deque()
        self.restart()

    def restart(self, batches: Generator[Prepared, None, None] | None = None) -> None:
        """Start a new window, with other batches if they are given."""
        if batches is not None:
            self.close()
            self._batches = batches
            self._copied.clear()
        self._waited = 0.0
        self._real = self._positions = 0
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of the block, in which nothing is trained, out of the window that has begun."""
        began = time.perf_counter()
        yield
        self._started += time.perf_counter() - began

    def close(self) -> None:
        """Stop the preparation of batches."""
        self._batches.close()

    def next_batch(self) -> Prepared:
        """Return the next batch, and begin to copy those after it. The time in which none is ready is input wait."""
        started = time.perf_counter()
        for ahead in itertools.islice(self._batches, 1 + COPIED_AHEAD - len(self._copied)):
            self._begin_copies(ahead)
            self._copied.append(ahead)
        self._waited += time.perf_counter() - started
        batch = self._copied.popleft()
        for share in batch.batch.shares:
            for ids in (share.source, share.target_in):
                self._real += np.count_nonzero(ids != PAD)
                self._positions += ids.size
        return batch

    def end(self, step: int, learning_rate: float) -> Record:
        """End the window with this step, counted from 1, and begin the next one. Return its metrics as a function.

        It takes the results of the steps, of which those whose loss, or gradient, is not finite do not count; NaN if
        none does. Losses are in nats per real target token, None for a tower without tokens. padding: in the shares of
        this machine. tower_skew: by how much the largest number of target tokens of a tower exceeds the mean.
        """
        seconds = time.perf_counter() - self._started
        waited = self._waited
        padding = 1 - self._real / max(1, self._positions)
        self.restart()

        def record(results: Sequence[StepResult]) -> dict[str, Any]:
            losses = np.array([r.loss_sums for r in results], np.float64)  # [steps, towers]
            tokens = np.array([r.weight_sums for r in results], np.float64)  # [steps, towers]
            tower_tokens = tokens.sum(axis=0)  # of all steps
            finite = np.isfinite(losses).all(axis=1)
            losses, tokens = losses[finite].sum(axis=0), tokens[finite].sum(axis=0)  # [towers]
            examples = sum(r.examples for r in results)
            norm = next((r.gradient_norm for r in reversed(results) if math.isfinite(r.gradient_norm)), math.nan)
            return {
                "step": step,
                "loss": float(losses.sum() / tokens.sum()) if tokens.any() else math.nan,
                "tower_losses": [float(x / count) if count else None for x, count in zip(losses, tokens, strict=True)],
                "gradient_norm": norm,
                "learning_rate": learning_rate,
                "examples_per_s": examples / seconds,
                "target_tokens_per_s": float(tower_tokens.sum()) / seconds,
                "tower_target_tokens_per_s": [float(count) / seconds for count in tower_tokens],
                "tower_skew": float(tower_tokens.max() / tower_tokens.mean()) - 1,
                "padding": padding,
                "input_wait": waited / seconds,
            }

        return record


class WindowReader:
    """Reads the results of windows that have ended, in a thread, so that a log does not wait for the last steps."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "results")
        self._unread: collections.deque[tuple[Record, Future[list[StepResult]]]] = collections.deque()

    def put(self, record_of: Record, packed: Sequence[tf.Tensor]) -> None:
        """Begin to read the packed results of a window, which the devices may still compute."""
        self._unread.append((record_of, self._thread.submit(unpacked_results, packed)))

    def get(self, unread: int) -> Iterator[tuple[dict[str, Any], list[StepResult]]]:
        """Wait for all windows but the last ones, by this number; yield the record and the results of each."""
        while len(self._unread) > unread:
            record_of, reading = self._unread.popleft()
            results = reading.result()
            yield record_of(results), results

    def clear(self) -> None:
        """Forget the windows that were not read."""
        self._unread.clear()
