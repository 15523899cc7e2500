"""A training step that traces nothing, for tests of the training loop.

The optimizer's own operations update the weights, from gradients and losses that are functions of the step.
"""

from collections.abc import Callable, Container
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batches import GlobalBatch
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.data import prepare
from chatbot.training.loop import train
from chatbot.training.replica import Replica, TrainState, group_variables
from chatbot.training.result import TrainingResult
from chatbot.training.run import Run
from chatbot.training.share import Prepared
from chatbot.training.variable_update import VariableUpdate, pack_result
from tests.training.small_run import open_with, small_settings, without_replies


class UntracedUpdate(VariableUpdate):
    """A training step without a graph, on one tower.

    strike: called with each step before it ends. not_finite, high, overflows: the steps, counted from 1, whose loss is
    not a number, is far above that of the others, or whose gradients overflow float16.
    steps: the number, counted from 0, the learning rate and the source ids of each step.
    """

    def __init__(
        self,
        model: Seq2Seq,
        settings: Settings,
        strike: Callable[[int], None] = lambda step: None,
        not_finite: Container[int] = (),
        high: Container[int] = (),
        overflows: Container[int] = (),
    ) -> None:
        super().__init__(["cpu_0"], 1)
        groups = group_variables(model, settings.learning, 0)
        self._replica, self._strike = Replica(model, settings.learning, groups), strike
        self._not_finite, self._high, self._overflows = not_finite, high, overflows
        self.step = 0
        self.steps: list[tuple[int, float, Any]] = []

    def prepare(self, batch: GlobalBatch, number: int) -> Prepared:
        """Prepare nothing."""
        return Prepared(number, batch, 1, [])

    def begin_copies(self, prepared: Prepared) -> None:
        """Copy nothing."""

    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Update all weights."""
        self.step = prepared.number + 1
        self.steps.append((prepared.number, rate, prepared.batch.shares[0].source.tolist()))
        random = np.random.default_rng([prepared.number, int(prepared.batch.shares[0].source.sum())])
        trained = [self._replica.weights[i] for i in self._replica.trained]
        gradients = [tf.constant(random.normal(size=w.shape), tf.float32) for w in trained]
        overflow = self.step in self._overflows
        tokens = tf.constant(float("nan") if overflow or self.step in self._not_finite else 1.0)
        applied = self._replica.apply(gradients, tokens, tf.constant(rate, tf.float32))
        loss = float("nan") if self.step in self._not_finite else random.uniform(2, 3) + 30 * (self.step in self._high)
        report = tf.constant([[loss], [1.0], [1.0]])
        self._finished.append(pack_result(report, applied.norm, applied.finite, tf.constant(overflow)))
        self._strike(self.step)

    def gather_state(self) -> TrainState:
        """Return the state of the replica."""
        return self._replica.gather_state()

    def scatter_state(self, state: TrainState) -> None:
        """Set the state of the replica."""
        self._replica.scatter_state(state)


def train_untraced(**changes: Any) -> tuple[Run, TrainingResult]:
    """Train on pairs.tsv with such a step, and without replies at the end. changes: of the step, or of the settings."""
    names = "strike", "not_finite", "high", "overflows"
    behaviour = {name: changes.pop(name) for name in names if name in changes}
    settings = small_settings(**{"data": ("pairs.tsv",), "report_to": "none", **changes})
    run = open_with(lambda model, chosen: UntracedUpdate(model, chosen, **behaviour), settings, prepare(settings))
    with without_replies():
        return run, train(run)
