"""The metrics of the steps since the last logged step: means, rates, and the time spent waiting for input."""

import math
import time
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from chatbot.corpus.batches import Batch
from chatbot.corpus.vocabulary import PAD
from chatbot.training.share import Prepared
from chatbot.training.variable_update.interface import StepResult


class Window:
    """Times the steps between two records, and waits for their batches."""

    def __init__(self, batches: Generator[Prepared, None, None]) -> None:
        self._batches = batches
        self.restart()

    def restart(self, batches: Generator[Prepared, None, None] | None = None) -> None:
        """Start a new window. The time since the last record, for example for saving, does not count.

        batches: those to go on with if they are others than before.
        """
        if batches is not None:
            self.close()
            self._batches = batches
        self._waited = 0.0
        self._real = self._positions = 0
        self._started = time.perf_counter()

    def close(self) -> None:
        """Stop the preparation of batches."""
        self._batches.close()

    def next_batch(self) -> Prepared:
        """Return the next batch. The time that this takes counts as input wait."""
        started = time.perf_counter()
        batch = next(self._batches)
        self._waited += time.perf_counter() - started
        self._count(batch.batch.shares)
        return batch

    def _count(self, shares: Sequence[Batch]) -> None:
        """Count the positions of sources and targets, and those that hold a token."""
        for share in shares:
            for ids in (share.source, share.target_in):
                self._real += np.count_nonzero(ids != PAD)
                self._positions += ids.size

    def record(self, step: int, learning_rate: float, results: Sequence[StepResult]) -> dict[str, Any]:
        """Return the metrics of the window. Losses are in nats per real target token, None for a tower without tokens.

        step: the last of the window, from 1. results: of the steps in the window. Steps whose loss is not finite do not
        count for the loss, nor those whose gradient is not finite for the norm; if there are no others, the values are
        NaN. The padding is that of the shares of this machine's towers. The skew is by how much the largest number of
        target tokens of a tower exceeds the mean.
        """
        losses = np.array([r.loss_sums.numpy() for r in results], np.float64)  # [steps, towers]
        tokens = np.array([r.weight_sums.numpy() for r in results], np.float64)  # [steps, towers]
        tower_tokens = tokens.sum(axis=0)  # of all steps
        finite = np.isfinite(losses).all(axis=1)
        losses, tokens = losses[finite].sum(axis=0), tokens[finite].sum(axis=0)  # [towers]
        examples = sum(int(r.examples) for r in results)
        norms = [float(r.gradient_norm) for r in results]
        norm = next(filter(math.isfinite, reversed(norms)), math.nan)
        seconds = time.perf_counter() - self._started
        return {
            "step": step,
            "loss": float(losses.sum() / tokens.sum()) if tokens.any() else math.nan,
            "tower_losses": [
                float(loss / count) if count else None for loss, count in zip(losses, tokens, strict=True)
            ],
            "gradient_norm": norm,
            "learning_rate": learning_rate,
            "examples_per_s": examples / seconds,
            "target_tokens_per_s": float(tower_tokens.sum()) / seconds,
            "tower_target_tokens_per_s": [float(count) / seconds for count in tower_tokens],
            "tower_skew": float(tower_tokens.max() / tower_tokens.mean()) - 1,
            "padding": 1 - self._real / max(1, self._positions),
            "input_wait": self._waited / seconds,
        }
