"""--staged-variables: gradients are applied while the next ones are computed, so that their exchange takes no time.

w[t+1] = w[t] - update(gradient of batch t-1 at w[t-1]).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.training.allreduce import Total, of_first_replica
from chatbot.training.gradients import Sums, TowerSums
from chatbot.training.replica import TrainState, Values
from chatbot.training.share import Buffer, Share
from chatbot.training.step import Synchronous
from chatbot.training.variable_update import Graph, packed_result

LARGEST_FLOAT = np.finfo(np.float32).max


class Staged(Synchronous):
    """A training step whose gradients are applied one step late. The first step of a run updates nothing.

    The gradients of the last step are exchanged while those of this step are computed. No weight changes before the
    latter are there, and the former are kept until all weights have changed: a step that runs out of memory is repeated
    from the same gradients and weights.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pending: TowerSums | None = None  # of the last step
        self._totals: list[Total] | None = None  # of the pending gradients, once they are exchanged
        self._sum_graph = Graph(self._sum)
        self._report_graph = Graph(self._first_result)
        self._late_update_graph = Graph(self._late_update)
        self.step_graph = Graph(self._late_step)

    def _train_at_once(self, shares: Sequence[Share | Buffer], rate: tf.Tensor) -> tf.Tensor:
        if self._pending is None or self._totals is not None:
            return self._train_in_order([shares], rate)
        self._exchanging = True
        self._pending, result = self.step_graph(shares, self._pending, rate)
        self._calls += 1
        return result

    def _train_in_order(self, pieces: Sequence[Sequence[Share | Buffer]], rate: tf.Tensor) -> tf.Tensor:
        """Run a graph for the exchange, one for each piece, and one for the update."""
        if self._pending is None:
            towers = self.compute_gradients(pieces)
            result = self._report_graph(towers.report)
        else:
            self._totals = self._totals or self._sum_graph(self._pending)
            towers = self.compute_gradients(pieces)
            self._exchanging = True
            result = self._late_update_graph(self._totals, towers.report, self._pending.loss_scales, rate)
            self._calls += 1
        self._pending = towers
        self._totals = None
        return result

    def _late_step(
        self, shares: Sequence[Share | Buffer], pending: TowerSums, rate: tf.Tensor
    ) -> tuple[TowerSums, tf.Tensor]:
        """Exchange the pending gradients and compute those of this step; then apply the former."""
        totals = self._sum(pending)
        towers = self._gradients(shares)
        with tf.control_dependencies(tf.nest.flatten(towers.sums)):
            totals = [total._replace(tokens=tf.identity(total.tokens)) for total in totals]
        return towers, self._late_update(totals, towers.report, pending.loss_scales, rate)

    def _late_update(
        self, totals: Sequence[Total], report: tf.Tensor, loss_scales: Sequence[Any], rate: tf.Tensor
    ) -> tf.Tensor:
        """Apply the totals of the pending gradients. report: of this step, in this process."""
        return self._updated(totals, self._sum_of_reports(report), loss_scales, rate)

    def _sum_of_reports(self, report: tf.Tensor) -> tf.Tensor:
        """Return the report of the towers of all machines."""
        parts = [[report]]
        for replica in self.replicas[1:]:
            with tf.device(replica.home):
                parts.append([tf.zeros_like(report)])
        (total,) = of_first_replica(self._exchange(parts))
        return total

    def _first_result(self, report: tf.Tensor) -> tf.Tensor:
        """Return the result of the first step, which updates nothing."""
        return packed_result(self._sum_of_reports(report), tf.constant(0.0), tf.constant(True), tf.constant(False))

    def gather_state(self) -> TrainState:
        """Return the state, with the pending gradients."""
        state = super().gather_state()
        replica = self.replicas[0]
        gradients = [np.zeros(weight.shape, np.float32) for weight in replica.weights]
        tokens = np.zeros([], np.float32)
        scale = np.ones([], np.float32)
        if self._pending is not None:
            total, *_ = self._sum_graph(self._pending)
            # Gradients whose norm is not finite stand for those that are not finite, and -1 for tokens of NaN, so that
            # a resumed run skips the same update.
            for i, gradient in zip(replica.trained, total.gradients, strict=True):
                gradients[i] = np.nan_to_num(gradient.numpy(), nan=LARGEST_FLOAT)
            tokens = np.nan_to_num(total.tokens.numpy(), nan=-1.0)
            scale = np.asarray(1.0 if replica.loss_scale is None else self._pending.loss_scales[0], np.float32)
        return state._replace(pending=[*map(np.asarray, replica.of_variables(gradients)), tokens, scale])

    def _set_state(self, state: TrainState) -> None:
        self._pending = self._pending_of(state.pending)
        self._totals = None
        super()._set_state(state)

    def _pending_of(self, state: Values) -> TowerSums | None:
        """Return the pending gradients of a state: all on the first tower of the first machine, zeros elsewhere."""
        *gradients, tokens, scale = state
        if tokens == 0:
            return None
        tokens = tokens if tokens > 0 else np.float32("nan")
        *groups, embedding = self.replicas[0].groups
        sums = list[Sums]()
        for i, tower in enumerate(self._towers):
            share = np.float32(self._team.chief and i == 0)
            with tf.device(tower.device):
                of_groups = [
                    g.joined([tf.constant(share * gradients[j]) for j in g.indices]) for g in groups if g.trained
                ]
                rows = tf.constant(share * gradients[embedding.indices[0]])
                projection = [tf.zeros(rows.shape)] if self._model.tied else []
                sums.append(Sums(tf.constant(0.0), tf.constant(share * tokens), projection, of_groups, rows))
        with tf.device(self.replicas[0].home):
            report = tf.zeros([3, len(self._towers) * self._team.machines])
        used = list[tf.Tensor]()
        scales = list[Any]()
        for replica in self.replicas:
            with tf.device(replica.home):
                used.append(tf.range(embedding.shapes[0][0], dtype=tf.int64))
                scales.append(tf.constant(scale) if replica.loss_scale else None)
        return TowerSums(sums, report, used, scales)
