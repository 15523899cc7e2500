"""The synchronous step: every tower computes gradients, their sums are exchanged, every replica gets the same update.

Variable updates differ in the replicas of the weights, and in the exchange between them (`update.py`).
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.allreduce import Exchange, Summation, Total, broadcast, no_exchange
from chatbot.training.devices.failures import is_out_of_memory
from chatbot.training.devices.towers import Tower
from chatbot.training.gradients import Sums, TowerSums, gradient_function, spread_gradient_function
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.replica import Inputs, Replica, TrainState
from chatbot.training.share import Buffer, Preparation, Prepared, Share
from chatbot.training.variable_update import Graph, VariableUpdate, packed_result


class Synchronous(VariableUpdate):
    """A training step over one or several replicas of the weights.

    A step is one graph, in which the exchange of gradients overlaps with the backward pass, or several: those of the
    pieces of each share, whose gradients are added, then that of the update. `MemoryLimits` says which.

    replicas: of this process, each with the towers that read its weights; all machines have as many towers. exchange:
    sums over the replicas of all processes.
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
        self._summation = Summation(replicas, exchange)
        self._calls = 0  # equals the replicas' own count unless an update failed
        self._exchanging = False  # whether the last step got as far as the exchange
        self._read_weights_graph = Graph(self._read_weights)
        self._gradients_graph = Graph(self._gradients)
        self._further_gradients_graph = Graph(self._further_gradients)
        self._update_graph = Graph(self._update)
        self.step_graph = Graph(self._step)

    @property
    def traces(self) -> int:
        """The number of times that gradients were traced: once for each graph that a run needs."""
        graphs = self._gradients_graph, self._further_gradients_graph, self.step_graph
        return sum(graph.traces for graph in graphs)

    def tower_weights(self) -> list[Inputs]:
        """Return a copy of the weights for each tower, and in float16 the loss scale. Towers of a replica share it."""
        of_replicas = self._read_weights_graph()
        return [of_replicas[replica] for replica in self._replica_of_tower]

    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Train on a global batch. Raises UserError if memory does not suffice for one pair."""
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
        """Run the graphs of a step; return the packed result."""
        self._exchanging = False
        pieces = self.preparation.copied(prepared)
        if len(pieces) > 1:
            return self._train_in_order(pieces, rate)
        is_alone = len(self.replicas) == 1 and self._team.alone
        if is_alone or self.memory.fits_at_once(prepared.size):
            return self._train_at_once(pieces[0], rate)
        if self.memory.begin_trial(prepared.size):
            try:
                result = self._train_at_once(pieces[0], rate)
            except tf.errors.OpError as error:
                if not (is_out_of_memory(error, self._towers) and self._weights_intact()):
                    raise
                self.memory.end_trial(prepared.size, fitted=False)
            else:
                self.memory.end_trial(prepared.size, fitted=True)
                return result
        result = self._train_in_order(pieces, rate)
        self.memory.fits(prepared.size)
        return result

    def _weights_intact(self) -> bool:
        """Return whether no weight of any replica has changed, on any machine, in the step that failed."""
        if self._exchanging and not self._team.alone:
            return False  # the other machines may have updated their weights
        return all(int(replica.calls.numpy()) == self._calls for replica in self.replicas)

    def _train_at_once(self, shares: Sequence[Share | Buffer], rate: tf.Tensor) -> tf.Tensor:
        """Run one graph."""
        self._exchanging = True
        result = self.step_graph(shares, rate)
        self._calls += 1
        return result

    def _train_in_order(self, pieces: Sequence[Sequence[Share | Buffer]], rate: tf.Tensor) -> tf.Tensor:
        """Run a graph for each piece, and one for the update."""
        towers = self.compute_gradients(pieces)
        self._exchanging = True
        result = self._update_graph(towers, rate)
        self._calls += 1
        return result

    def compute_gradients(self, pieces: Sequence[Sequence[Share | Buffer]]) -> TowerSums:
        """Return the sums of each tower over the pieces of its share, without an update."""
        towers = self._gradients_graph(pieces[0])
        for piece in pieces[1:]:
            towers = self._further_gradients_graph(piece, towers)
        return towers

    # Traced methods: `_read_weights_graph` is the graph of `_read_weights`, and likewise for the others.

    def _read_weights(self) -> list[Inputs]:
        """Return the current weights of each replica, and in float16 its loss scale."""
        return [replica.read() for replica in self.replicas]

    def _step(self, shares: Sequence[Share | Buffer], rate: tf.Tensor) -> tf.Tensor:
        """Compute the gradients of a batch, and update every replica."""
        return self._update(self._gradients(shares), rate)

    def _gradients(self, shares: Sequence[Share | Buffer]) -> TowerSums:
        """Return the sums of each tower over its share, or a piece of it."""
        inputs = self._read_weights()
        sums = list[Sums]()
        counts = list[tf.Tensor]()
        used = dict[int, tf.Tensor]()
        for i, (tower, prepared) in enumerate(zip(self._towers, shares, strict=True)):
            with tf.device(tower.device):
                share = self.preparation.tensors(prepared)
                replica = self._replica_of_tower[i]
                sums.append(self.gradient_functions[i](inputs[replica].weights, share, inputs[replica].loss_scale))
                counts.append(share.counts)
                used.setdefault(replica, share.used)
        with tf.device(self.replicas[0].home):
            report = tf.concat([[[s.loss for s in sums]], tf.transpose(tf.stack(counts))], 0)  # [3, towers]
            before, after = (len(sums) * n for n in (self._team.machine, self._team.machines - self._team.machine - 1))
            report = tf.pad(report, [[0, 0], [before, after]]) if before or after else report
        return TowerSums(sums, report, [*used.values()], [of_replica.loss_scale for of_replica in inputs])

    def _further_gradients(self, shares: Sequence[Share | Buffer], before: TowerSums) -> TowerSums:
        """Add the sums over a piece of each share to those of the pieces before."""
        towers = self._gradients(shares)
        sums, report = tf.nest.map_structure(tf.add, before[:2], towers[:2])
        return towers._replace(sums=sums, report=report)

    def first_tower_sums(self, inputs: Inputs, share: Share | Buffer) -> Sums:
        """Return the sums that the first tower would return for a share, computed on the device of the caller."""
        return self.gradient_functions[0](inputs.weights, self.preparation.tensors(share), inputs.loss_scale)

    def _update(self, towers: TowerSums, rate: tf.Tensor) -> tf.Tensor:
        """Sum the gradients over all towers and update every replica."""
        totals = self._sum(towers)
        return self._updated(totals, totals[0].report, towers.loss_scales, rate)

    def _sum(self, towers: TowerSums) -> list[Total]:
        return self._summation(towers.sums, towers.report, towers.used)

    def _updated(
        self, totals: Sequence[Total], report: tf.Tensor, loss_scales: Sequence[Any], rate: tf.Tensor
    ) -> tf.Tensor:
        """Update every replica by its total; return the packed result. report: of the towers of all machines."""
        applied = [
            replica.apply(total.gradients, total.tokens, rate, scale)
            for replica, total, scale in zip(self.replicas, totals, loss_scales, strict=True)
        ]
        with tf.device(self.replicas[0].home):
            finite = functools.reduce(tf.logical_and, [clipped.finite for clipped in applied])
            # Independent replicas skip for themselves: the step is an overflow if none skipped it for another reason.
            skipped_by_none = functools.reduce(tf.logical_and, [x.finite | x.overflow for x in applied])
            overflow = ~finite & skipped_by_none
            return packed_result(report, applied[0].norm, finite, overflow)

    def gather_state(self) -> TrainState:
        """Copy the weights into the model; return the rest of a checkpoint, which is the same on every machine."""
        return self.replicas[0].gather_state()

    def scatter_state(self, state: TrainState) -> None:
        """Copy machine 0's model and state to every replica of every machine."""
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
        """Copy the model and a state to every replica of this machine."""
        for replica in self.replicas:
            replica.scatter_state(state)
