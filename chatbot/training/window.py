"""The metrics of the steps since the last logged step: means, rates, and the time spent waiting for input."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from chatbot.training.share import Prepared
from chatbot.training.variable_update.step_result import StepResult


class Window:
    """Times the steps between two records, and waits for their batches."""

    def __init__(self, batches: Iterable[Prepared]) -> None:
        self._batches: Iterator[Prepared] = iter(batches)
        self.restart()

    def restart(self) -> None:
        """Start a new window. The time since the last record, for example for saving, does not count."""
        self._waited = 0.0
        self._started = time.perf_counter()

    def next_batch(self) -> Prepared:
        """Return the next batch. The time that this takes counts as input wait."""
        started = time.perf_counter()
        batch = next(self._batches)
        self._waited += time.perf_counter() - started
        return batch

    def record(self, step: int, learning_rate: float, results: Sequence[StepResult]) -> dict[str, Any]:
        """Return the metrics of the window. Losses are in nats per real target token, None for a tower without tokens.

        step: the last of the window, from 1. results: of the steps in the window.
        """
        losses = np.array([r.loss_sums.numpy() for r in results], np.float64).sum(axis=0)  # [towers]
        tokens = np.array([r.weight_sums.numpy() for r in results], np.float64).sum(axis=0)  # [towers]
        examples = sum(int(r.examples) for r in results)
        norm = float(results[-1].gradient_norm)
        seconds = time.perf_counter() - self._started
        return {
            "step": step,
            "loss": float(losses.sum() / tokens.sum()),
            "tower_losses": [
                float(loss / count) if count else None for loss, count in zip(losses, tokens, strict=True)
            ],
            "gradient_norm": norm,
            "learning_rate": learning_rate,
            "examples_per_s": examples / seconds,
            "target_tokens_per_s": float(tokens.sum()) / seconds,
            "input_wait": self._waited / seconds,
        }
