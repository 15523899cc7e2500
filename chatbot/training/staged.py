"""--staged-variables: the exchange of gradients overlaps with the computation of the next step.

Each gradient is therefore applied one step late: w[t+1] = w[t] - update(gradient of batch t-1 at w[t-1]).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.training.allreduce import Total, take_first_replica
from chatbot.training.gradients import Sums, TowerSums
from chatbot.training.replica import TrainState, Values
from chatbot.training.share import Buffer, Share
from chatbot.training.step import Synchronous
from chatbot.training.variable_update import Graph, pack_result

MAX_FLOAT = np.finfo(np.float32).max


class Staged(Synchronous):
    """A training step whose gradients are applied one step late. The first step of a run updates nothing.

    The gradients of the previous step are called pending. They are exchanged between replicas while the gradients of
    the current step are computed.

    A step that runs out of memory can be repeated, because the pending gradients are kept until all weights have been
    updated.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pending: TowerSums | None = None  # gradients of the previous step; None before the first step
        self._totals: list[Total] | None = None  # pending gradients, summed over replicas; None until exchanged
        self._sum_graph = Graph(self._sum)
        self._report_graph = Graph(self._first_result)
        self._late_update_graph = Graph(self._late_update)
        self.step_graph = Graph(self._late_step)

    def _train_in_one_graph(self, shares: Sequence[Share | Buffer], rate: tf.Tensor) -> tf.Tensor:
        if self._pending is None or self._totals is not None:
            return self._train_in_pieces([shares], rate)
        self._reached_exchange = True
        self._pending, result = self.step_graph(shares, self._pending, rate)
        self._calls += 1
        return result

    def _train_in_pieces(self, pieces: Sequence[Sequence[Share | Buffer]], rate: tf.Tensor) -> tf.Tensor:
        """Run one graph for the exchange, one for each micro-batch, and one for the update."""
        if self._pending is None:
            towers = self.compute_gradients(pieces)
            result = self._report_graph(towers.report)
        else:
            self._totals = self._totals or self._sum_graph(self._pending)
            towers = self.compute_gradients(pieces)
            self._reached_exchange = True
            result = self._late_update_graph(self._totals, towers.report, self._pending.loss_scales, rate)
            self._calls += 1
        self._pending = towers
        self._totals = None
        return result

    def _late_step(
        self, shares: Sequence[Share | Buffer], pending: TowerSums, rate: tf.Tensor
    ) -> tuple[TowerSums, tf.Tensor]:
        """Exchange the pending gradients while computing those of this step, then apply the pending gradients."""
        totals = self._sum(pending)
        towers = self._gradients(shares)
        with tf.control_dependencies(tf.nest.flatten(towers.sums)):
            totals = [total._replace(tokens=tf.identity(total.tokens)) for total in totals]
        return towers, self._late_update(totals, towers.report, pending.loss_scales, rate)

    def _late_update(
        self, totals: Sequence[Total], report: tf.Tensor, loss_scales: Sequence[Any], rate: tf.Tensor
    ) -> tf.Tensor:
        """Apply the exchanged pending gradients, and return the result of the current step as a vector."""
        return self._apply_totals(totals, self._sum_of_reports(report), loss_scales, rate)

    def _sum_of_reports(self, report: tf.Tensor) -> tf.Tensor:
        """Sum the losses and counts of all towers over all machines."""
        parts = [[report]]
        for replica in self.replicas[1:]:
            with tf.device(replica.home):
                parts.append([tf.zeros_like(report)])
        (total,) = take_first_replica(self._exchange(parts))
        return total

    def _first_result(self, report: tf.Tensor) -> tf.Tensor:
        """Return the result of the first step, which updates nothing, as a vector."""
        return pack_result(self._sum_of_reports(report), tf.constant(0.0), tf.constant(True), tf.constant(False))

    def gather_state(self) -> TrainState:
        """Return the training state, including the pending gradients."""
        state = super().gather_state()
        replica = self.replicas[0]
        gradients = [np.zeros(weight.shape, np.float32) for weight in replica.weights]
        tokens = np.zeros([], np.float32)
        scale = np.ones([], np.float32)
        if self._pending is not None:
            total, *_ = self._sum_graph(self._pending)
            # Checkpoints only contain finite numbers. If the update must be skipped, the gradients are stored as
            # numbers so large that their norm overflows, and a token count of NaN as -1.
            for i, gradient in zip(replica.trained, total.gradients, strict=True):
                gradients[i] = np.nan_to_num(gradient.numpy(), nan=MAX_FLOAT)
            tokens = np.nan_to_num(total.tokens.numpy(), nan=-1.0)
            scale = np.asarray(1.0 if replica.loss_scale is None else self._pending.loss_scales[0], np.float32)
        return state._replace(pending=[*map(np.asarray, replica.by_variable(gradients)), tokens, scale])

    def _set_state(self, state: TrainState) -> None:
        self._pending = self._restore_pending(state.pending)
        self._totals = None
        super()._set_state(state)

    def _restore_pending(self, state: Values) -> TowerSums | None:
        """Return the pending gradients of a checkpoint.

        They are assigned to the chief's first tower. The gradients of all other towers are zero, so the sum is correct.
        """
        *gradients, tokens, scale = state
        if tokens == 0:
            return None
        tokens = tokens if tokens > 0 else np.float32("nan")  # -1 represents NaN.
        *groups, embedding = self.replicas[0].groups
        sums = list[Sums]()
        for i, tower in enumerate(self._towers):
            share = np.float32(self._team.chief and i == 0)
            with tf.device(tower.device):
                group_gradients = [
                    g.join([tf.constant(share * gradients[j]) for j in g.indices]) for g in groups if g.trained
                ]
                rows = tf.constant(share * gradients[embedding.indices[0]])
                projection = [tf.zeros(rows.shape)] if self._model.tied else []
                sums.append(Sums(tf.constant(0.0), tf.constant(share * tokens), projection, group_gradients, rows))
        with tf.device(self.replicas[0].home):
            report = tf.zeros([3, len(self._towers) * self._team.machines])
        lookup_ids = list[tf.Tensor]()
        scales = list[Any]()
        for replica in self.replicas:
            with tf.device(replica.home):
                lookup_ids.append(tf.range(embedding.shapes[0][0], dtype=tf.int64))
                scales.append(tf.constant(scale) if replica.loss_scale else None)
        return TowerSums(sums, report, lookup_ids, scales)
