"""--staged-variables: gradients are applied while the next ones are computed, so that their exchange takes no time.

w[t+1] = w[t] - update(gradient of batch t-1 at w[t-1]).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.training.allreduce import Total, of_first_replica
from chatbot.training.devices.towers import Tower
from chatbot.training.gradients import Sums
from chatbot.training.replica import Inputs, TrainState, Values
from chatbot.training.share import Buffer, Prepared, Share
from chatbot.training.step import Graph, StepResult, Synchronous, TowerSums, step_result

LARGEST_FLOAT = np.finfo(np.float32).max


class Pending(NamedTuple):
    """The gradients of the last step, which are not applied yet."""

    sums: list[Sums]  # of each tower
    used: tf.Tensor  # [used] int64, the `ids_used` of that step


class Staged(Synchronous):
    """A training step whose gradients are applied one step late. The first step of a run updates nothing."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pending: Pending | None = None
        self._sum_gradients_graph = Graph(self._summation)
        self._sum_report_graph = Graph(self._sum_report)
        self.step_graph = Graph(self._staged_step)

    def _run_step(self, prepared: Prepared, rate: tf.Tensor) -> StepResult:
        self._exchanging = True
        pending = self._pending
        if pending is None or len(prepared.shares) > 1:
            towers = self.compute_all_gradients(prepared)
            self._pending = Pending(towers.sums, prepared.used)
            if pending is None:
                return self._sum_report_graph(towers.report)
            result = self._apply_gradients_graph(TowerSums(pending.sums, towers.report), pending.used, rate)
        else:
            sums, result = self.step_graph(prepared.shares[0], prepared.used, self._read_weights_graph(), pending, rate)
            self._pending = Pending(sums, prepared.used)
        self._calls += 1
        return result

    def _staged_step(
        self, shares: Sequence[Share | Buffer], used: tf.Tensor, inputs: list[Inputs], pending: Pending, rate: tf.Tensor
    ) -> tuple[list[Sums], StepResult]:
        """Compute the gradients of this step and apply those of the last; neither depends on the other.

        inputs: read by an earlier call: TensorFlow's graph optimiser would move some of the reads behind the update.
        """
        sums, report = self._tower_sums(shares, used, inputs)
        return sums, self._apply_gradients(TowerSums(pending.sums, report), pending.used, rate)

    def _sum_report(self, report: tf.Tensor) -> StepResult:
        """Return the result of the first step, which updates nothing."""
        parts = [[report], *([tf.zeros_like(report)] for _ in self.replicas[1:])]
        (total,) = of_first_replica(self._exchange(parts))
        return step_result(total, tf.constant(0.0), tf.constant(True))

    def gather_state(self) -> TrainState:
        """Return the state, with the pending gradients at the end of the optimizer's."""
        state, total = super().gather_state(), None
        if self._pending is not None:
            no_report = tf.zeros([3, len(self._towers) * self._team.machines])
            total, *_ = self._sum_gradients_graph(self._pending.sums, no_report, self._pending.used)
        return state._replace(optimizer=[*state.optimizer, *pending_state(self._model, total)])

    def _set_state(self, state: TrainState) -> None:
        begin = len(state.optimizer) - len(self._model.trainable_variables) - 1
        self._pending = pending_of(self._model, state.optimizer[begin:], self._towers, self._team.chief)
        super()._set_state(state._replace(optimizer=state.optimizer[:begin]))


def pending_state(model: Seq2Seq, total: Total | None) -> Values:
    """Return the gradients and the target tokens as finite arrays; zeros for None.

    Gradients whose norm is not finite stand for those that are not finite, and -1 for tokens of NaN, so that a resumed
    run skips the same update.
    """
    if total is None:
        return [*(np.zeros(variable.shape, "f") for variable in model.trainable_variables), np.zeros([], "f")]
    gradients = (np.nan_to_num(gradient.numpy(), nan=LARGEST_FLOAT) for gradient in total.gradients)
    return [*gradients, np.nan_to_num(total.tokens.numpy(), nan=-1.0)]


def pending_of(model: Seq2Seq, state: Values, towers: Sequence[Tower], first_machine: bool) -> Pending | None:
    """Return the inverse of `pending_state`: all of it on the first tower of the first machine, zeros elsewhere."""
    *gradients, tokens = state
    if tokens == 0:
        return None
    tokens = tokens if tokens > 0 else np.float32("nan")
    sums: list[Sums] = []
    embedding = gradients.pop(embedding_index(model))
    for i, tower in enumerate(towers):
        share = np.float32(first_machine and i == 0)
        with tf.device(tower.device):
            projection = [tf.zeros(embedding.shape)] if model.projects_by_embedding else []
            others = [tf.constant(share * gradient) for gradient in gradients]
            rows = tf.constant(share * embedding)
            sums.append(Sums(tf.constant(0.0), tf.constant(share * tokens), projection, others, rows))
    return Pending(sums, tf.range(len(embedding), dtype=tf.int64))
