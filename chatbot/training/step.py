"""The synchronous step: every tower computes gradients, their sums are exchanged, every replica gets the same update.

Variable updates differ in the replicas of the weights, and in the exchange between them (`update.py`).
"""

import abc
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.corpus.batches import GlobalBatch
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import specs_of
from chatbot.training.allreduce import Exchange, Summation, broadcast, no_exchange
from chatbot.training.devices.failures import is_out_of_memory, more_pieces
from chatbot.training.devices.towers import Tower
from chatbot.training.gradients import Sums, gradient_functions
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.replica import Inputs, Replica, TrainState
from chatbot.training.share import Buffer, Preparation, Prepared, Share


class StepResult(NamedTuple):
    """The result of a step, on the devices; reading it copies it to the host."""

    loss_sums: tf.Tensor  # [towers of all machines] float32, nats
    weight_sums: tf.Tensor  # [towers of all machines] float32, real target tokens
    examples: tf.Tensor  # scalar float32, pairs in the global batch
    gradient_norm: tf.Tensor  # scalar float32, of the averaged gradient before clipping
    finite: tf.Tensor  # scalar bool; false if the update was skipped, since its loss or gradient was not finite
    overflow: tf.Tensor | None = None  # scalar bool, in float16: a smaller loss scale may prevent what was not finite


def step_result(report: tf.Tensor, norm: tf.Tensor, finite: tf.Tensor, overflow: tf.Tensor | None = None) -> StepResult:
    """Make the result from a report, [3, towers]: losses, target tokens and pairs."""
    losses, tokens, pairs = tf.unstack(report, num=3)
    return StepResult(losses, tokens, tf.reduce_sum(pairs), norm, finite, overflow)


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
    """Return a structure's specs, with sizes of None where the batch sets them: in a share, `used` and Sums.rows."""
    if isinstance(value, Share | Buffer):
        return specs_of(value)
    if isinstance(value, Sums):
        return Sums(*map(_spec, value))._replace(rows=tf.TensorSpec([None, value.rows.shape[1]], value.rows.dtype))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_spec, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_spec, value))
    if value is None:
        return None
    if value.dtype == tf.int64 and value.shape.rank == 1:  # ids
        return specs_of(value)
    return tf.TensorSpec(value.shape, value.dtype)


class VariableUpdate(abc.ABC):
    """A training step and its state, on devices of one or several machines.

    tower_names: in the order of the losses. num_shares: of a global batch, in this process.
    """

    def __init__(self, tower_names: list[str], num_shares: int) -> None:
        self.tower_names, self.num_shares = tower_names, num_shares
        self._finished: list[StepResult] = []

    @property
    def is_tracing(self) -> bool:
        """Whether a graph of the step is being traced. Any thread may ask."""
        return any(graph.is_tracing for graph in vars(self).values() if isinstance(graph, Graph))

    @abc.abstractmethod
    def prepare(self, batch: GlobalBatch, number: int) -> Prepared:
        """Prepare the global batch of step `number`, counted from 0. Any thread may call this."""

    @abc.abstractmethod
    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Train on a global batch. rate: the learning rate."""

    def finished_steps(self) -> list[StepResult]:
        """Return the results of the steps that finished since the last call, at least one."""
        finished, self._finished = self._finished, []
        return finished

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


class Synchronous(VariableUpdate):
    """A training step over one or several replicas of the weights.

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
        self._model, self._team, self._exchange = model, team, exchange
        self.replicas = [replica for replica, _ in replicas]
        self._towers = [tower for _, towers in replicas for tower in towers]
        super().__init__([tower.name for tower in self._towers], len(self._towers))
        self._replica_of_tower = [i for i, (_, towers) in enumerate(replicas) for _ in towers]
        self.preparation = Preparation(model, settings.seed, [tower.device for tower in self._towers], team.machine)
        self.gradient_functions = gradient_functions(model, self._towers)
        self._summation = Summation(model, replicas, exchange)
        self._accumulate = settings.accumulate
        self._pieces = self._accumulate  # of each share; more after a device ran out of memory
        # Batches are prepared ahead by another thread, and again by this one after memory ran out.
        self._preparing = threading.Lock()
        self._proven: list[tuple[int, ...]] = []  # the sizes of batches that did not run out of memory
        self._calls = 0  # equals the replicas' own count unless an update failed
        self._exchanging = False  # whether the last step got as far as the exchange
        self._read_weights_graph = Graph(self._read_weights)
        self._compute_gradients_graph = Graph(self._compute_gradients)
        self._add_gradients_graph = Graph(self._add_gradients)
        self._apply_gradients_graph = Graph(self._apply_gradients)
        self.step_graph = Graph(self._train_step)

    @property
    def traces(self) -> int:
        """The number of times that gradients were traced: once for each graph that a run needs."""
        graphs = self._compute_gradients_graph, self._add_gradients_graph, self.step_graph
        return sum(graph.traces for graph in graphs)

    def tower_weights(self) -> list[Inputs]:
        """Return a copy of the weights for each tower, and in float16 the loss scale. Towers of a replica share it."""
        of_replicas = self._read_weights_graph()
        return [of_replicas[replica] for replica in self._replica_of_tower]

    def prepare(self, batch: GlobalBatch, number: int) -> Prepared:
        """Prepare the batch, each share in pieces if memory has run out before."""
        with self._preparing:
            return self.preparation(batch, number, self._pieces)

    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Train on a global batch. Raises UserError if memory does not suffice for one pair."""
        while True:
            if prepared.pieces != self._pieces:
                prepared = self.prepare(prepared.batch, prepared.number)
            try:
                self._finished.append(self._run_step(prepared, tf.constant(rate, tf.float32)))
                return
            except tf.errors.OpError as error:
                if not is_out_of_memory(error, self._towers):
                    raise
                rows = max(len(share.source) for share in prepared.batch.shares)
                first_time = self._pieces == self._accumulate
                self._pieces = more_pieces(
                    error, prepared.number, self._pieces, rows, first_time, self._weights_intact()
                )
                self._proven.clear()

    def _weights_intact(self) -> bool:
        """Return whether no weight of any replica has changed, on any machine, in the step that failed."""
        if self._exchanging and not self._team.alone:
            return False  # the other machines may have updated their weights
        return all(int(replica.calls.numpy()) == self._calls for replica in self.replicas)

    def _run_step(self, prepared: Prepared, rate: tf.Tensor) -> StepResult:
        """Run one graph, in which the exchange of gradients overlaps with the backward pass.

        While it is not known that a batch of this size fits in memory, and where shares are split into pieces, several
        replicas run two graphs, for gradients and for the update: memory then runs out while no other replica waits and
        no weight changes.
        """
        self._exchanging = False
        size, single_replica = prepared.size, len(self.replicas) == 1 and self._team.alone
        # A batch that was at least as large in every dimension did not run out of memory.
        is_proven = any(all(a >= b for a, b in zip(proven, size, strict=True)) for proven in self._proven)
        if len(prepared.shares) == 1 and (single_replica or is_proven):
            self._exchanging = not single_replica
            result = self.step_graph(prepared.shares[0], prepared.used, rate)
        else:
            towers = self.compute_all_gradients(prepared)
            self._exchanging = True
            result = self._apply_gradients_graph(towers, prepared.used, rate)
            self._proven.append(size)
        self._calls += 1
        return result

    def compute_all_gradients(self, prepared: Prepared) -> TowerSums:
        """Return the sums of each tower over the pieces of its share, without an update."""
        first, *others = prepared.shares
        result = self._compute_gradients_graph(first, prepared.used)
        for piece in others:
            result = self._add_gradients_graph(piece, prepared.used, result)
        return result

    # Traced methods: `_read_weights_graph` is the graph of `_read_weights`, and likewise for the others.

    def _read_weights(self) -> list[Inputs]:
        """Return the current weights of each replica, and in float16 its loss scale."""
        return [replica.read() for replica in self.replicas]

    def _compute_gradients(self, shares: Sequence[Share | Buffer], used: tf.Tensor) -> TowerSums:
        return self._tower_sums(shares, used, self._read_weights())

    def _add_gradients(self, shares: Sequence[Share | Buffer], used: tf.Tensor, before: TowerSums) -> TowerSums:
        """Add the sums over a piece of each share to those of the pieces before."""
        return tf.nest.map_structure(tf.add, before, self._compute_gradients(shares, used))

    def first_tower_sums(self, inputs: Inputs, share: Share | Buffer, number_used: tf.Tensor) -> Sums:
        """Return the sums that the first tower would return for a share, computed on the device of the caller."""
        tensors = self.preparation.tensors(share)
        return self.gradient_functions[0](inputs.weights, tensors, number_used, inputs.loss_scale)

    def _tower_sums(self, shares: Sequence[Share | Buffer], used: tf.Tensor, inputs: list[Inputs]) -> TowerSums:
        """Return the sums of each tower. inputs: of each replica."""
        sums, counts = [], []
        with tf.device(self._towers[0].device):  # where `used` is
            number_used = tf.shape(used)[0]
        for i, (tower, prepared) in enumerate(zip(self._towers, shares, strict=True)):
            with tf.device(tower.device):
                share, of_replica = self.preparation.tensors(prepared), inputs[self._replica_of_tower[i]]
                sums.append(self.gradient_functions[i](of_replica.weights, share, number_used, of_replica.loss_scale))
                counts.append(share.counts)
        with tf.device(self.replicas[0].home):
            report = tf.concat([[[s.loss for s in sums]], tf.transpose(tf.stack(counts))], 0)  # [3, towers]
            before, after = (len(sums) * n for n in (self._team.machine, self._team.machines - self._team.machine - 1))
            return TowerSums(sums, tf.pad(report, [[0, 0], [before, after]]) if before or after else report)

    def _apply_gradients(self, towers: TowerSums, used: tf.Tensor, rate: tf.Tensor) -> StepResult:
        """Sum the gradients over all towers and update every replica."""
        totals = self._summation(*towers, used)
        applied = [
            replica.apply(gradients, tokens, rate)
            for replica, (gradients, tokens, _) in zip(self.replicas, totals, strict=True)
        ]
        finite = tf.reduce_all([clipped.finite for clipped in applied])
        overflows = [clipped.finite | clipped.overflow for clipped in applied if clipped.overflow is not None]
        overflow = tf.reduce_all(overflows) if overflows else None
        return step_result(totals[0].report, applied[0].norm, finite, overflow)

    def _train_step(self, shares: Sequence[Share | Buffer], used: tf.Tensor, rate: tf.Tensor) -> StepResult:
        return self._apply_gradients(self._compute_gradients(shares, used), used, rate)

    def gather_state(self) -> TrainState:
        """Copy the weights into the model; return the rest of a checkpoint, which is the same on every machine."""
        return self.replicas[0].gather_state()

    def scatter_state(self, state: TrainState) -> None:
        """Copy machine 0's model and state to every replica of every machine."""
        if not self._team.alone:
            weights, arrays = [variable.value for variable in self._model.trainable_variables], tf.nest.flatten(state)
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
