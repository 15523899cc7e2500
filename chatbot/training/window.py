"""What happened since the last line of metrics: sums over steps, and where the time went."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from chatbot.training.gradients import Share
from chatbot.training.variable_update.synchronous import StepResult


class Window:
    """Times what happens between two records."""

    def __init__(self, batches: Iterable[tuple[Share, ...]]) -> None:
        self._batches: Iterator[tuple[Share, ...]] = iter(batches)
        self.restart()

    def restart(self) -> None:
        """Begin anew: what was done since the last record, such as saving, is not training."""
        self._waited = 0.0
        self._began = time.perf_counter()

    def next_shares(self) -> tuple[Share, ...]:
        """The next batch; the time it is waited for counts as input wait."""
        asked = time.perf_counter()
        shares = next(self._batches)
        self._waited += time.perf_counter() - asked
        return shares

    def record(self, step: int, learning_rate: float, results: Sequence[StepResult]) -> dict[str, Any]:
        """The metrics of the window. Losses are per real target token; a tower that had none has null.

        results: of the steps in the window.
        """
        losses = np.array([r.loss_sums.numpy() for r in results], np.float64).sum(axis=0)  # [towers]
        tokens = np.array([r.weight_sums.numpy() for r in results], np.float64).sum(axis=0)  # [towers]
        examples = sum(int(r.examples) for r in results)
        norm = float(results[-1].gradient_norm)
        seconds = time.perf_counter() - self._began
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
