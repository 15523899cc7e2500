"""The synchronous training step.

Each tower computes the gradients of its part of the batch. The gradients are summed over all towers, and every replica
of the weights applies the same update.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.allreduce import Exchange, Total, broadcast, no_exchange, sum_gradients
from chatbot.training.devices.failures import is_out_of_memory
from chatbot.training.devices.towers import Tower
from chatbot.training.gradients import Sums, TowerSums, gradient_function, spread_gradient_function
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.replica import Inputs, Replica, TrainState
from chatbot.training.share import Buffer, Preparation, Prepared, Share
from chatbot.training.variable_update import Graph, VariableUpdate, pack_result


class Synchronous(VariableUpdate):
    """A synchronous training step over one or several replicas of the weights.

    A step can run as a single graph, in which the exchange of gradients overlaps with the backward pass. It can also
    run as several graphs, which need less memory: one graph computes the gradients of a micro-batch, and another
    updates the weights. `MemoryLimits` chooses between the two.

    Args:
        model: The model.
        settings: The learning settings, with the optimizer, the seed and --accumulate.
        replicas: The replicas of this process, each with the towers that use its weights. All machines have the same
            number of towers.
        exchange: The function that all-reduces gradients over the replicas.
        team: The machines of the run.
    """

    def __init__(
        self,
        model: Seq2Seq,
        settings: LearningSettings,
        replicas: Sequence[tuple[Replica, Sequence[Tower]]],
        exchange: Exchange = no_exchange,
        team: Team = ALONE,
    ) -> None:
        self._model = model
        self._team = team
        self._exchange = exchange
        self.has_exchange = exchange is not no_exchange
        self._replicas_and_towers = list(replicas)
        self.replicas = [replica for replica, _ in replicas]
        self._towers = [tower for _, towers in replicas for tower in towers]
        super().__init__([tower.name for tower in self._towers], len(self._towers), settings.accumulate)
        self._replica_of_tower = [i for i, (_, towers) in enumerate(replicas) for _ in towers]
        self.preparation = Preparation(model, settings.seed, [tower.device for tower in self._towers], team.machine)
        groups = self.replicas[0].groups
        if self._towers[0].parts is None:
            self.gradient_functions = [gradient_function(model, groups)] * len(self._towers)
        else:
            spread = [tower.parts for tower in self._towers if tower.parts]
            self.gradient_functions = [spread_gradient_function(model, groups, parts) for parts in spread]
        self._calls = 0  # equal to `Replica.calls`, unless an update failed
        self._reached_exchange = False  # whether the latest step may have started to exchange gradients
        self._gradients_graph = Graph(self._gradients)
        self._further_gradients_graph = Graph(self._further_gradients)
        self._update_graph = Graph(self._update)
        self.step_graph = Graph(self._step)

    @property
    def traces(self) -> int:
        """How often graphs that compute gradients have been traced. Each graph should be traced at most once."""
        graphs = self._gradients_graph, self._further_gradients_graph, self.step_graph
        return sum(graph.traces for graph in graphs)

    def tower_weights(self) -> list[Inputs]:
        """Return a copy of the weights and the loss scale for each tower. Towers of one replica share a copy."""
        inputs = self._read_weights()
        return [inputs[replica] for replica in self._replica_of_tower]

    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Train on a global batch. Raises UserError if there is not enough memory for a single pair."""
        for failures in itertools.count(1):
            if prepared.pieces != self.memory.pieces(prepared.batch):
                prepared = self.prepare(prepared.batch, prepared.number)
            try:
                self._finished.append(self._train(prepared, tf.constant(rate, tf.float32)))
                return
            except tf.errors.OpError as error:
                if not is_out_of_memory(error, self._towers):
                    raise
                self.memory.divide(error, prepared, failures, self._weights_intact())

    def _train(self, prepared: Prepared, rate: tf.Tensor) -> tf.Tensor:
        """Run the graphs of a step, and return its result as a vector."""
        self._reached_exchange = False
        pieces = self.preparation.device_shares(prepared)
        if len(pieces) > 1:
            return self._train_in_pieces(pieces, rate)
        is_single_replica = len(self.replicas) == 1 and self._team.alone
        if is_single_replica or self.memory.fits_in_one_graph(prepared.size):
            return self._train_in_one_graph(pieces[0], rate)
        if self.memory.begin_trial(prepared.size):
            try:
                result = self._train_in_one_graph(pieces[0], rate)
            except tf.errors.OpError as error:
                if not (is_out_of_memory(error, self._towers) and self._weights_intact()):
                    raise
                self.memory.end_trial(prepared.size, fitted=False)
            else:
                self.memory.end_trial(prepared.size, fitted=True)
                return result
        result = self._train_in_pieces(pieces, rate)
        self.memory.fits(prepared.size)
        return result

    def _weights_intact(self) -> bool:
        """Return whether the failed step has left the weights of all replicas on all machines unchanged."""
        if self._reached_exchange and not self._team.alone:
            return False  # Other machines may have updated their weights.
        return all(int(replica.calls.numpy()) == self._calls for replica in self.replicas)

    def _train_in_one_graph(self, shares: Sequence[Share | Buffer], rate: tf.Tensor) -> tf.Tensor:
        """Run the whole step in a single graph."""
        self._reached_exchange = True
        result = self.step_graph(shares, rate)
        self._calls += 1
        return result

    def _train_in_pieces(self, pieces: Sequence[Sequence[Share | Buffer]], rate: tf.Tensor) -> tf.Tensor:
        """Run one graph for each micro-batch, and one for the update."""
        towers = self.compute_gradients(pieces)
        self._reached_exchange = True
        result = self._update_graph(towers, rate)
        self._calls += 1
        return result

    def compute_gradients(self, pieces: Sequence[Sequence[Share | Buffer]]) -> TowerSums:
        """Compute the gradients of each tower, summed over all its micro-batches, without updating the weights."""
        towers = self._gradients_graph(pieces[0])
        for piece in pieces[1:]:
            towers = self._further_gradients_graph(piece, towers)
        return towers

    # The following methods are traced into graphs; for example, `_gradients_graph` is the graph of `_gradients`.

    def _read_weights(self) -> list[Inputs]:
        """Return a copy of the weights and the loss scale of each replica."""
        return [replica.read() for replica in self.replicas]

    def _step(self, shares: Sequence[Share | Buffer], rate: tf.Tensor) -> tf.Tensor:
        """Compute the gradients of a batch, and update all replicas."""
        return self._update(self._gradients(shares), rate)

    def _gradients(self, shares: Sequence[Share | Buffer]) -> TowerSums:
        """Compute the gradients of each tower for one micro-batch."""
        inputs = self._read_weights()
        sums = list[Sums]()
        reports = list[tf.Tensor]()
        lookup_ids = dict[int, tf.Tensor]()
        for i, (tower, prepared) in enumerate(zip(self._towers, shares, strict=True)):
            with tf.device(tower.device):
                share = self.preparation.tensors(prepared)
                replica = self._replica_of_tower[i]
                sums.append(self.gradient_functions[i](inputs[replica].weights, share, inputs[replica].loss_scale))
                reports.append(tf.concat([tf.expand_dims(sums[i].loss, 0), share.counts], 0))
                lookup_ids.setdefault(replica, share.lookup_ids)
        with tf.device(self.replicas[0].home):
            report = tf.stack(reports, 1)  # [3, towers]
            before, after = (len(sums) * n for n in (self._team.machine, self._team.machines - self._team.machine - 1))
            report = tf.pad(report, [[0, 0], [before, after]]) if before or after else report
        return TowerSums(sums, report, [*lookup_ids.values()], [replica_inputs.loss_scale for replica_inputs in inputs])

    def _further_gradients(self, shares: Sequence[Share | Buffer], accumulated: TowerSums) -> TowerSums:
        """Compute the gradients of each tower for the next micro-batch, and add them to the accumulated gradients."""
        towers = self._gradients(shares)
        sums, report = tf.nest.map_structure(tf.add, accumulated[:2], towers[:2])
        return towers._replace(sums=sums, report=report)

    def first_tower_sums(self, inputs: Inputs, share: Share | Buffer) -> Sums:
        """Compute gradients with the first tower's gradient function, on the caller's device."""
        return self.gradient_functions[0](inputs.weights, self.preparation.tensors(share), inputs.loss_scale)

    def _update(self, towers: TowerSums, rate: tf.Tensor) -> tf.Tensor:
        """Sum the gradients over all towers, and update all replicas."""
        totals = self._sum(towers)
        return self._apply_totals(totals, totals[0].report, towers.loss_scales, rate)

    def _sum(self, towers: TowerSums) -> list[Total]:
        return sum_gradients(self._replicas_and_towers, self._exchange, towers)

    def _apply_totals(
        self, totals: Sequence[Total], report: tf.Tensor, loss_scales: Sequence[Any], rate: tf.Tensor
    ) -> tf.Tensor:
        """Update each replica with the summed gradients, and return the result of the step as a vector."""
        applied = [
            replica.apply(total.gradients, total.tokens, rate, scale)
            for replica, total, scale in zip(self.replicas, totals, loss_scales, strict=True)
        ]
        with tf.device(self.replicas[0].home):
            finite = functools.reduce(tf.logical_and, [clipped.finite for clipped in applied])
            overflow = tf.constant(False)
            if loss_scales[0] is not None:
                # Independent replicas may skip updates for different reasons. The step counts as an overflow only if
                # all skipped updates are due to overflows.
                only_overflows = functools.reduce(tf.logical_and, [x.finite | x.overflow for x in applied])
                overflow = ~finite & only_overflows
            return pack_result(report, applied[0].norm, finite, overflow)

    def gather_state(self) -> TrainState:
        """Copy the weights into the model, and return the rest of the training state, the same on all machines."""
        return self.replicas[0].gather_state()

    def scatter_state(self, state: TrainState) -> None:
        """Copy the chief's weights and training state to all replicas on all machines."""
        if not self._team.alone:
            weights = [variable.value for variable in self._model.trainable_variables]
            arrays = tf.nest.flatten(state)
            homes = [replica.home for replica in self.replicas]
            received = broadcast(self._exchange, (*weights, *arrays), homes, self._team.chief)
            for weight, value in zip(weights, received, strict=False):
                weight.assign(value)
            arrays = [new.numpy().astype(old.dtype) for old, new in zip(arrays, received, strict=True)]
            state = tf.nest.pack_sequence_as(state, arrays)
        self._set_state(state)

    def _set_state(self, state: TrainState) -> None:
        """Copy the weights of the model and the training state to all replicas of this machine."""
        for replica in self.replicas:
            replica.scatter_state(state)
