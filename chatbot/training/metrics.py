"""Computation of training metrics for the steps between two logs."""

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
from chatbot.training.variable_update import StepResult, unpack_results

# The type of a function that computes the metrics of a window (the steps between two logs) from their results.
ComputeMetrics = Callable[[Sequence[StepResult]], dict[str, Any]]


class Window:
    """Supplies batches for the steps between two logs, and measures the time of these steps.

    Each batch is copied to the devices ahead of time.

    Args:
        batches: A generator of prepared batches.
        begin_copies: A function that starts copying a batch to the devices.
    """

    def __init__(self, batches: Generator[Prepared, None, None], begin_copies: Callable[[Prepared], object]) -> None:
        self._batches = batches
        self._begin_copies = begin_copies
        self._copied: collections.deque[Prepared] = collections.deque()
        self._steps = 0
        self.seconds_per_step: float | None = None  # in the last window
        self.restart()

    def restart(self, batches: Generator[Prepared, None, None] | None = None) -> None:
        """Start a new window, which lasts until the next log.

        Args:
            batches: A generator that replaces the current batches; None to keep them.
        """
        if batches is not None:
            self.close()
            self._batches = batches
            self._copied.clear()
        self._wait_seconds = 0.0
        self._steps = self._tokens = self._positions = 0
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time spent in this context from the current window."""
        began = time.perf_counter()
        yield
        self._started += time.perf_counter() - began

    def close(self) -> None:
        """Stop the preparation of batches."""
        self._batches.close()

    def next_batch(self) -> Prepared:
        """Return the next batch, and start copying the following ones. The time spent waiting is measured."""
        started = time.perf_counter()
        for prepared in itertools.islice(self._batches, 1 + COPIED_AHEAD - len(self._copied)):
            self._begin_copies(prepared)
            self._copied.append(prepared)
        self._wait_seconds += time.perf_counter() - started
        batch = self._copied.popleft()
        self._steps += 1
        for share in batch.batch.shares:
            for ids in (share.source, share.target_in):
                self._tokens += np.count_nonzero(ids != PAD)
                self._positions += ids.size
        return batch

    def end(self, step: int, learning_rate: float) -> ComputeMetrics:
        """End the current window after this step, and start the next one.

        Losses are in nats per target token. Steps with a loss that is not finite are ignored. `padding` is the fraction
        of padding tokens in the batches of this machine. `tower_skew` is the largest number of target tokens of any
        tower, divided by the mean over all towers, minus 1.

        Args:
            step: The last step of the window, counted from 1.
            learning_rate: The learning rate of this step.

        Returns:
            A function that computes the metrics of the window from the results of its steps.
        """
        seconds = time.perf_counter() - self._started
        wait_seconds = self._wait_seconds
        padding = 1 - self._tokens / max(1, self._positions)
        self.seconds_per_step = seconds / max(1, self._steps)
        self.restart()

        def compute_metrics(results: Sequence[StepResult]) -> dict[str, Any]:
            losses = np.array([r.loss_sums for r in results], np.float64)  # [steps, towers]
            tokens = np.array([r.weight_sums for r in results], np.float64)  # [steps, towers]
            tower_tokens = tokens.sum(axis=0)  # [towers], including steps with a non-finite loss
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
                "input_wait": wait_seconds / seconds,
            }

        return compute_metrics


class WindowReader:
    """Reads step results from the devices in a thread, so the training loop does not wait for them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "results")
        self._unread: collections.deque[tuple[ComputeMetrics, Future[list[StepResult]]]] = collections.deque()

    def put(self, compute_metrics: ComputeMetrics, packed: Sequence[tf.Tensor]) -> None:
        """Start reading the packed results of a window. The devices may still be computing them.

        Args:
            compute_metrics: The function returned by `Window.end`.
            packed: The packed result of each step in the window.
        """
        self._unread.append((compute_metrics, self._thread.submit(unpack_results, packed)))

    def get(self, unread: int) -> Iterator[tuple[dict[str, Any], list[StepResult]]]:
        """Yield the metrics and the step results of all windows except the last `unread` ones, waiting if needed."""
        while len(self._unread) > unread:
            compute_metrics, future = self._unread.popleft()
            results = future.result()
            yield compute_metrics(results), results

    def clear(self) -> None:
        """Discard all unread windows."""
        self._unread.clear()
