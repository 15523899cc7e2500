"""The synchronous step: every tower computes gradients, their sums are exchanged, every replica gets the same update.

Variable updates differ in the replicas of the weights, and in the exchange between them (`update.py`).
"""

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.corpus.batches import GlobalBatch
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import specs_of
from chatbot.training.allreduce import Exchange, Summation, Total, broadcast, no_exchange
from chatbot.training.devices.failures import check_repeatable, is_out_of_memory
from chatbot.training.devices.towers import Tower
from chatbot.training.gradients import Sums, gradient_function
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.model_parallel import spread_gradient_function
from chatbot.training.replica import Inputs, Replica, TrainState
from chatbot.training.share import Buffer, Preparation, Prepared, Share


class StepResult(NamedTuple):
    """The result of a step, on the host."""

    loss_sums: Any  # [towers of all machines] float32, nats
    weight_sums: Any  # [towers of all machines] float32, real target tokens
    examples: int  # pairs in the global batch
    gradient_norm: float  # of the averaged gradient before clipping
    finite: bool  # false if the update was skipped, since its loss or gradient was not finite
    overflow: bool = False  # in float16: a smaller loss scale may prevent what was not finite


def packed_result(report: tf.Tensor, norm: tf.Tensor, finite: tf.Tensor, overflow: tf.Tensor) -> tf.Tensor:
    """Return a result as one vector, which the host reads in one copy. report: of `TowerSums`."""
    return tf.concat(
        [tf.reshape(report, [-1]), tf.stack([norm, *(tf.cast(x, tf.float32) for x in (finite, overflow))])], 0
    )


def unpacked_results(results: Sequence[tf.Tensor]) -> list[StepResult]:
    """Return the results that `packed_result` has packed, after the devices have computed them."""
    unpacked = []
    for *report, norm, finite, overflow in np.asarray(tf.stack(results)) if results else ():
        losses, tokens, pairs = np.reshape(np.array(report, np.float32), [3, -1])
        unpacked.append(StepResult(losses, tokens, int(pairs.sum()), float(norm), bool(finite), bool(overflow)))
    return unpacked


class Graph:
    """Calls a function as a graph, traced at the first call for batches of all sizes.

    traced: the traced function, None before. is_tracing: whether a thread traces now.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = tf.function(function, autograph=False)
        self.traced: Any = None
        self.is_tracing = False

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph. Only the sizes of the batch may differ between calls."""
        return self.concrete(*inputs)(*inputs)

    def concrete(self, *inputs: Any) -> Any:
        """Return the traced function, for these inputs."""
        if self.traced is None:
            self.is_tracing = True
            try:
                self.traced = self._function.get_concrete_function(*map(_spec, inputs))
            finally:
                self.is_tracing = False
        return self.traced

    @property
    def traces(self) -> int:
        """The number of times that the function was traced."""
        return int(self._function.experimental_get_tracing_count())


def _spec(value: Any) -> Any:
    """Return a structure's specs, with sizes of None where the batch sets them: in a share, and in `used` and rows."""
    if isinstance(value, Share | Buffer):
        return specs_of(value)
    if isinstance(value, Sums):
        return Sums(*map(_spec, value))._replace(rows=tf.TensorSpec([None, value.rows.shape[1]], value.rows.dtype))
    if isinstance(value, TowerSums):
        return TowerSums(*map(_spec, value))._replace(used=[specs_of(used) for used in value.used])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_spec, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_spec, value))
    if value is None:
        return None
    return tf.TensorSpec(value.shape, value.dtype)


class VariableUpdate(abc.ABC):
    """A training step and its state, on devices of one or several machines.

    tower_names: in the order of the losses. num_shares: of a global batch, in this process. most_positions: of a piece
    of a share, source and target together, since a device ran out of memory with more; None before. has_exchange:
    whether a step waits for other devices or machines, which might be for ever if one of them has failed.
    """

    preparation: Preparation
    has_exchange = True

    def __init__(self, tower_names: list[str], num_shares: int) -> None:
        self.tower_names = tower_names
        self.num_shares = num_shares
        self.most_positions: int | None = None
        self._finished: list[tf.Tensor] = []

    @property
    def is_tracing(self) -> bool:
        """Whether a graph of the step is being traced. Any thread may ask."""
        return any(graph.is_tracing for graph in vars(self).values() if isinstance(graph, Graph))

    def prepare(self, batch: GlobalBatch, number: int) -> Prepared:
        """Prepare the global batch of step `number`, counted from 0, on the host. Any thread may call this."""
        return self.preparation(batch, number)

    def begin_copies(self, prepared: Prepared) -> None:
        """Begin to copy a batch to the devices. A step does so itself if nobody has done so before."""
        self.preparation.begin_copies(prepared)

    @abc.abstractmethod
    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Train on a global batch. rate: the learning rate."""

    def take_results(self) -> list[tf.Tensor]:
        """Return the packed results of the steps since the last call, at least one; devices may still compute them."""
        finished = self._finished
        self._finished = []
        return finished

    def finished_steps(self) -> list[StepResult]:
        """Return the results of the steps since the last call, at least one, when the devices have computed them."""
        return unpacked_results(self.take_results())

    @abc.abstractmethod
    def gather_state(self) -> TrainState:
        """Copy the weights into the model; return the rest of a checkpoint."""

    @abc.abstractmethod
    def scatter_state(self, state: TrainState) -> None:
        """Continue from the model's weights and a state as `gather_state` returns it."""


class TowerSums(NamedTuple):
    """What the towers of this process compute in a step."""

    sums: list[Sums]  # of each tower
    report: tf.Tensor  # [3, towers of all machines] float32: losses, target tokens, pairs; 0 for other machines
    used: list[tf.Tensor]  # of each replica, [used] int64, the ids of Sums.rows
    loss_scales: list[Any]  # of each replica, scalar float32: the scale of the gradients, in float16; else None


class Synchronous(VariableUpdate):
    """A training step over one or several replicas of the weights.

    A step is one graph, in which the exchange of gradients overlaps with the backward pass, or several: those of the
    pieces of each share, whose gradients are added, then that of the update. With several replicas, memory must not run
    out in the one graph, since the replicas that have enough would wait in the exchange for ever. So the first batch of
    a size takes several graphs, in which no replica waits for another one before all have computed their gradients. The
    one graph needs more memory. So its first run for a size is recorded: a process that must be ended then has failed.

    replicas: of this process, each with the towers that read its weights; all machines have as many towers. exchange:
    sums over the replicas of all processes. too_large: the positions of the smallest batch that had no memory in one
    graph of several replicas. record: called with it before a first run, as if that failed, and after it.
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
        super().__init__([tower.name for tower in self._towers], len(self._towers))
        self._replica_of_tower = [i for i, (_, towers) in enumerate(replicas) for _ in towers]
        self._accumulate = settings.accumulate
        self.preparation = Preparation(model, settings.seed, [tower.device for tower in self._towers], team.machine)
        groups = self.replicas[0].groups
        if self._towers[0].parts is None:
            self.gradient_functions = [gradient_function(model, groups)] * len(self._towers)
        else:
            spread = [tower.parts for tower in self._towers if tower.parts]
            self.gradient_functions = [spread_gradient_function(model, groups, parts) for parts in spread]
        self._summation = Summation(replicas, exchange)
        # The sizes of batches that did not run out of memory in several graphs, and in one graph.
        self._fitted, self._fitted_at_once = list[tuple[int, ...]](), list[tuple[int, ...]]()
        self.too_large = math.inf
        self.record: Callable[[float], object] = lambda positions: None
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

    def prepare(self, batch: GlobalBatch, number: int) -> Prepared:
        """Prepare the batch on the host, each share in pieces of at most `most_positions`."""
        return self.preparation(batch, number, self._pieces(batch))

    def _pieces(self, batch: GlobalBatch) -> int:
        """Return the number of pieces of each share, a function of the batch and `most_positions` alone."""
        if self.most_positions is None:
            return self._accumulate
        return max(self._accumulate, math.ceil(_positions(batch) / self.most_positions))

    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Train on a global batch. Raises UserError if memory does not suffice for one pair."""
        factor = 1
        while True:
            if prepared.pieces != self._pieces(prepared.batch):
                prepared = self.prepare(prepared.batch, prepared.number)
            try:
                self._finished.append(self._train(prepared, tf.constant(rate, tf.float32)))
                return
            except tf.errors.OpError as error:
                if not is_out_of_memory(error, self._towers):
                    raise
                first_time = self.most_positions is None
                rows = _rows(prepared.batch)
                check_repeatable(error, prepared.number, prepared.pieces < rows, first_time, self._weights_intact())
                factor *= 2  # 2, 8, 64, 1024 pieces: TensorFlow waits for memory for ten seconds before it fails
                self.most_positions = _positions(prepared.batch) // min(rows, factor * prepared.pieces)
                self._fitted = []
                self._fitted_at_once = []

    def _weights_intact(self) -> bool:
        """Return whether no weight of any replica has changed, on any machine, in the step that failed."""
        if self._exchanging and not self._team.alone:
            return False  # the other machines may have updated their weights
        return all(int(replica.calls.numpy()) == self._calls for replica in self.replicas)

    def _train(self, prepared: Prepared, rate: tf.Tensor) -> tf.Tensor:
        """Run the graphs of a step; return the packed result."""
        self._exchanging = False
        pieces = self.preparation.copied(prepared)
        size = prepared.size
        is_alone = len(self.replicas) == 1 and self._team.alone
        is_whole = len(pieces) == 1
        has_fitted = _has_as_large(self._fitted, size)
        if is_whole and (is_alone or _has_as_large(self._fitted_at_once, size)):
            return self._train_at_once(pieces[0], rate)
        positions = size[0] * sum(size[1:])
        if is_whole and has_fitted and positions < self.too_large:
            self.record(positions)
            try:
                result = self._train_at_once(pieces[0], rate)
            except tf.errors.OpError as error:
                if not (is_out_of_memory(error, self._towers) and self._weights_intact()):
                    raise
                self.too_large = positions
            else:
                self._fitted_at_once.append(size)
                self.record(self.too_large)
                return result
        result = self._train_in_order(pieces, rate)
        self._fitted += [size] if is_whole and not has_fitted else []
        return result

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


def _has_as_large(sizes: Sequence[tuple[int, ...]], size: tuple[int, ...]) -> bool:
    """Return whether one of the sizes is at least as large in every dimension."""
    return any(all(a >= b for a, b in zip(other, size, strict=True)) for other in sizes)


def _rows(batch: GlobalBatch) -> int:
    """Return the pairs of the largest share of this machine."""
    return max(len(share.source) for share in batch.shares)


def _positions(batch: GlobalBatch) -> int:
    """Return the padded positions of the largest share of this machine, source and target together."""
    share = batch.shares[0]
    return _rows(batch) * (share.source.shape[1] + share.target_in.shape[1])
