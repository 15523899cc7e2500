"""The synchronous step: every tower computes gradients, their sums are exchanged, every replica gets the same update.

The synchronous variable updates differ in two points only: the number of replicas of the weights, and the exchange of
sums between them (`Exchange`). Each is a short function in choose.py that makes a `Synchronous`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from chatbot.corpus.batches import GlobalBatch
from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.training.buffer import Buffer
from chatbot.training.devices.failures import is_cudnn_failure, is_out_of_memory, more_pieces, repeat_after
from chatbot.training.devices.towers import Tower
from chatbot.training.exchange import Exchange, broadcast, of_first_replica
from chatbot.training.gradients import Sums, gradient_functions
from chatbot.training.share import Preparation, Prepared, Share
from chatbot.training.variable_update.graph import Graph
from chatbot.training.variable_update.interface import StepResult, step_result
from chatbot.training.variable_update.replica import Inputs, Replica, Values
from chatbot.training.variable_update.summation import Summation

LARGEST_FLOAT = np.finfo(np.float32).max


class Synchronous:
    """A training step over one or several replicas of the weights.

    replicas: the replicas of this process, each with the towers that read its weights.
    exchange: sums over the replicas of all processes; None if replicas do not exchange gradients.
    accumulate: the number of pieces of each share, which are computed one after another.
    staged: apply the gradients of a step while the next one computes, so that their exchange takes no extra time:
    w[t+1] = w[t] - update(gradient of batch t-1 at w[t-1]).
    machine, machines: the index of this process, and the number of processes. All have the same number of towers.
    """

    def __init__(
        self,
        model: Seq2Seq,
        replicas: Sequence[tuple[Replica, Sequence[Tower]]],
        seed: int,
        exchange: Exchange | None = None,
        accumulate: int = 1,
        staged: bool = False,
        machine: int = 0,
        machines: int = 1,
    ) -> None:
        self._model, self._replicas = model, list(replicas)
        self._exchange = exchange
        self._single_replica = exchange is None and len(replicas) == 1
        self._towers = [tower for _, towers in replicas for tower in towers]
        self._machine, self._machines = machine, machines
        self.preparation = Preparation(model, seed, [tower.device for tower in self._towers], machine)
        self.gradient_functions = gradient_functions(model, self._towers)
        self._summation = Summation(model, self._replicas, exchange)
        self._accumulate, self._staged = accumulate, staged
        self._pieces = accumulate  # of each share; more after a device ran out of memory
        self._proven: list[tuple[int, ...]] = []  # the sizes of batches that did not run out of memory
        self._pending: Pending | None = None  # staged: computed, not applied yet
        self._calls = 0  # equals the replicas' own count unless an update failed
        self._exchanging = False  # whether the last step got as far as the exchange
        self._finished: list[StepResult] = []
        self._read_weights_graph = Graph(self._read_weights)
        self._sum_gradients_graph = Graph(self._summation)
        self._compute_gradients_graph = Graph(self._compute_gradients)
        self._add_gradients_graph = Graph(self._add_gradients)
        self._apply_gradients_graph = Graph(self._apply_gradients)
        self._sum_report_graph = Graph(self._sum_report)
        self._staged_step_graph = Graph(self._staged_step)
        self.step_graph = Graph(self._train_step)

    @property
    def traces(self) -> int:
        """The number of times that gradients were traced: once for each graph that a run needs."""
        graphs = self._compute_gradients_graph, self._add_gradients_graph, self.step_graph, self._staged_step_graph
        return sum(graph.traces for graph in graphs)

    @property
    def is_tracing(self) -> bool:
        """Whether a graph of the step is being traced."""
        return any(graph.is_tracing for graph in vars(self).values() if isinstance(graph, Graph))

    @property
    def tower_names(self) -> list[str]:
        """The names of the towers of this process, in the order of their shares."""
        return [tower.name for tower in self._towers]

    @property
    def num_shares(self) -> int:
        """The number of shares that a step takes in this process."""
        return len(self._towers)

    def tower_weights(self) -> list[Inputs]:
        """Return a copy of the weights for each tower, and in float16 the loss scale. Towers of a replica share it."""
        of_replicas = zip(self._read_weights_graph(), self._replicas, strict=True)
        return [weights for weights, (_, towers) in of_replicas for _ in towers]

    def finished_steps(self) -> list[StepResult]:
        """Return the results of the steps since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def prepare(self, batch: GlobalBatch, number: int) -> Prepared:
        """Prepare the batch of step `number`, counted from 0. Any thread may call this."""
        return self.preparation(batch, number, self._pieces)

    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Train on one global batch. rate: the learning rate.

        Raises UserError if memory does not suffice even for one pair at a time, and DeviceError if cuDNN fails then.
        """
        again = False
        run_step = self._run_staged_step if self._staged else self._run_step
        while True:
            if prepared.pieces != self._pieces:
                prepared = self.prepare(prepared.batch, prepared.number)
            try:
                self._finished.append(run_step(prepared, tf.constant(rate, tf.float32)))
                return
            except tf.errors.OpError as error:
                of_cudnn, intact = is_cudnn_failure(error, self._towers), self._weights_intact()
                if of_cudnn and not again:
                    repeat_after(error, prepared.number, intact)
                    again = True
                    continue
                if not of_cudnn and not is_out_of_memory(error, self._towers):
                    raise
                rows = max(len(share.source) for share in prepared.batch.shares)
                first_time = self._pieces == self._accumulate
                self._pieces = more_pieces(error, prepared.number, self._pieces, rows, first_time, intact)
                self._proven.clear()

    def _weights_intact(self) -> bool:
        """Return whether no weight of any replica has changed, on any machine, in the step that failed."""
        if self._machines > 1 and (self._staged or self._exchanging):
            return False  # the other machines may have updated their weights
        return all(int(replica.calls.numpy()) == self._calls for replica, _ in self._replicas)

    def _run_step(self, prepared: Prepared, rate: tf.Tensor) -> StepResult:
        """Run one graph, in which the exchange of gradients overlaps with the backward pass.

        While it is not known that a batch of this size fits in memory, several replicas run two graphs: the first one
        computes gradients, and the second one exchanges and applies them. Memory then runs out in the first one, while
        no other replica waits and no weight changes. So do all steps whose shares are split into pieces.
        """
        self._exchanging = False
        size = prepared.size
        if len(prepared.shares) == 1 and (self._single_replica or self._is_proven(size)):
            self._exchanging = not self._single_replica
            result = self.step_graph(prepared.shares[0], prepared.used, rate)
        else:
            sums, report = self.compute_all_gradients(prepared)
            self._exchanging = True
            result = self._apply_gradients_graph(sums, report, prepared.used, rate)
            self._proven.append(size)
        self._calls += 1
        return result

    def _is_proven(self, size: tuple[int, ...]) -> bool:
        """Return whether a batch that was at least as large in every dimension did not run out of memory."""
        return any(all(a >= b for a, b in zip(proven, size, strict=True)) for proven in self._proven)

    def compute_all_gradients(self, prepared: Prepared) -> tuple[list[Sums], tf.Tensor]:
        """Return the sums of each tower over the pieces of its share, and the report (`_tower_sums`). No update."""
        first, *others = prepared.shares
        result = self._compute_gradients_graph(first, prepared.used)
        for piece in others:
            result = self._add_gradients_graph(piece, prepared.used, result)
        return result

    def _run_staged_step(self, prepared: Prepared, rate: tf.Tensor) -> StepResult:
        if self._pending is None or len(prepared.shares) > 1:
            sums, report = self.compute_all_gradients(prepared)
            pending, self._pending = self._pending, Pending(sums, prepared.used)
            if pending is None:
                return self._sum_report_graph(report)
            result = self._apply_gradients_graph(pending.sums, report, pending.used, rate)
        else:
            inputs = prepared.shares[0], prepared.used, self._read_weights_graph(), *self._pending, rate
            sums, result = self._staged_step_graph(*inputs)
            self._pending = Pending(sums, prepared.used)
        self._calls += 1
        return result

    # Traced methods: `_read_weights_graph` is the graph of `_read_weights`, and likewise for the others.

    def _read_weights(self) -> list[Inputs]:
        """Return the current weights of each replica, and in float16 its loss scale."""
        return [replica.read() for replica, _ in self._replicas]

    def _compute_gradients(self, shares: Sequence[Share | Buffer], used: tf.Tensor) -> tuple[list[Sums], tf.Tensor]:
        return self._tower_sums(shares, used, self._read_weights())

    def _add_gradients(
        self, shares: Sequence[Share | Buffer], used: tf.Tensor, before: tuple[list[Sums], tf.Tensor]
    ) -> tuple[list[Sums], tf.Tensor]:
        """Add the sums over a piece of each share to those of the pieces before."""
        return tf.nest.map_structure(tf.add, before, self._compute_gradients(shares, used))

    def first_tower_sums(self, weights: Inputs, share: Share | Buffer, number_used: tf.Tensor) -> Sums:
        """Return the sums that the first tower would return for a share, computed on the device of the caller."""
        values, loss_scale = weights
        return self.gradient_functions[0](values, self.preparation.tensors(share), number_used, *loss_scale)

    def _tower_sums(
        self, shares: Sequence[Share | Buffer], used: tf.Tensor, weights: list[Inputs]
    ) -> tuple[list[Sums], tf.Tensor]:
        """Return the sums of each tower, and a report.

        The report is [3, towers of all machines] float32: losses, target tokens and pairs; 0 for other machines.
        """
        first_tower, sums, counts = self._machine * len(self._towers), [], []
        replica_of_tower = [i for i, (_, towers) in enumerate(self._replicas) for _ in towers]
        with tf.device(self._towers[0].device):  # where `used` is
            number_used = tf.shape(used)[0]
        for i, (tower, replica, prepared) in enumerate(zip(self._towers, replica_of_tower, shares, strict=True)):
            with tf.device(tower.device):
                share, (values, loss_scale) = self.preparation.tensors(prepared), weights[replica]
                sums.append(self.gradient_functions[i](values, share, number_used, *loss_scale))
                counts.append(share.counts)
        with tf.device(self._replicas[0][0].home):
            report = tf.concat([[[s.loss for s in sums]], tf.transpose(tf.stack(counts))], 0)  # [3, towers]
            towers_after = len(self._towers) * self._machines - first_tower - len(sums)
            if first_tower or towers_after:
                report = tf.pad(report, [[0, 0], [first_tower, towers_after]])
            return sums, report

    def _apply_gradients(self, sums: Sequence[Sums], report: tf.Tensor, used: tf.Tensor, rate: tf.Tensor) -> StepResult:
        """Sum the gradients over all towers and update every replica."""
        totals = self._summation(sums, report, used)
        applied = [
            replica.apply(gradients, tokens, rate)
            for (replica, _), (gradients, tokens, _) in zip(self._replicas, totals, strict=True)
        ]
        finite = tf.reduce_all([clipped.finite for clipped in applied])
        overflows = [clipped.finite | clipped.overflow for clipped in applied if clipped.overflow is not None]
        return step_result(totals[0][2], applied[0].norm, finite, tf.reduce_all(overflows) if overflows else None)

    def _train_step(self, shares: Sequence[Share | Buffer], used: tf.Tensor, rate: tf.Tensor) -> StepResult:
        return self._apply_gradients(*self._compute_gradients(shares, used), used, rate)

    def _staged_step(
        self,
        shares: Sequence[Share | Buffer],
        used: tf.Tensor,
        weights: list[Inputs],
        pending: Sequence[Sums],
        pending_used: tf.Tensor,
        rate: tf.Tensor,
    ) -> tuple[list[Sums], StepResult]:
        """Compute the gradients of this step and apply those of the last; neither depends on the other.

        weights: read by an earlier call. In the graph of tf.distribute's reduction, TensorFlow's graph optimiser would
        move some of the reads behind the update.
        """
        sums, report = self._tower_sums(shares, used, weights)
        return sums, self._apply_gradients(pending, report, pending_used, rate)

    def _sum_report(self, report: tf.Tensor) -> StepResult:
        """Return the result of a staged run's first step, which updates nothing."""
        parts = [[report], *([tf.zeros_like(report)] for _ in self._replicas[1:])]
        (total,) = of_first_replica(self._exchange(parts) if self._exchange else parts)
        return step_result(total, tf.constant(0.0), tf.constant(True))

    def gather_state(self) -> Values:
        """Copy the weights into the model; return the rest of a checkpoint, which is the same on every machine."""
        state = self._replicas[0][0].gather_state()
        if self._staged:
            gradients, tokens = [], tf.constant(0.0)
            if self._pending is not None:
                no_report = tf.zeros([3, len(self._towers) * self._machines])
                gradients, tokens, _ = self._sum_gradients_graph(self._pending.sums, no_report, self._pending.used)[0]
            state += pending_state(self._model, gradients, tokens)
        loss_scale = self._replicas[0][0].loss_scale
        return [*state, loss_scale.gather_state()] if loss_scale else state

    def scatter_state(self, state: Values) -> None:
        """Copy machine 0's model and state, as `gather_state` returns it, to every replica of every machine."""
        weights = [variable.value for variable in self._model.trainable_variables]
        if self._exchange is not None and self._machines > 1:
            homes = [replica.home for replica, _ in self._replicas]
            received = broadcast(self._exchange, (*weights, *state), homes, source=self._machine == 0)
            for weight, value in zip(weights, received, strict=False):
                weight.assign(value)
            state = [new.numpy().astype(old.dtype) for old, new in zip(state, received, strict=True)]
        if loss_scales := [replica.loss_scale for replica, _ in self._replicas if replica.loss_scale]:
            *state, scale_state = state
            for loss_scale in loss_scales:
                loss_scale.scatter_state(scale_state)
        if self._staged:
            state, pending = state[: -len(weights) - 1], state[-len(weights) - 1 :]
            self._pending = pending_of(self._model, pending, self._towers, self._machine == 0)
        for replica, _ in self._replicas:
            replica.scatter_state(state)


class Pending(NamedTuple):
    """The gradients of a staged run's last step."""

    sums: list[Sums]  # of each tower
    used: tf.Tensor  # [used] int64, the `ids_used` of that step


def pending_state(model: Seq2Seq, gradients: Sequence[tf.Tensor], tokens: tf.Tensor) -> Values:
    """Return the part of a checkpoint: the gradients, and the target tokens; zeros for none.

    gradients: summed over all towers, in the order of model.trainable_variables; empty for none. tokens: NaN if the
    loss is not finite. A checkpoint has finite numbers only: gradients whose norm is not finite stand for those that
    are not, and a negative number for NaN. A resumed run then skips the same update.
    """
    values = [gradient.numpy() for gradient in gradients] or [np.zeros(v.shape, "f") for v in model.trainable_variables]
    return [*(np.nan_to_num(value, nan=LARGEST_FLOAT) for value in values), np.nan_to_num(tokens.numpy(), nan=-1.0)]


def pending_of(model: Seq2Seq, state: Values, towers: Sequence[Tower], first_machine: bool) -> Pending | None:
    """Return the inverse of `pending_state`, for these towers: all of it on the first one, zeros elsewhere.

    first_machine: whether the first tower is that of all machines.
    """
    *gradients, tokens = state
    if tokens == 0:
        return None
    tokens = tokens if tokens > 0 else np.float32("nan")
    sums: list[Sums] = []
    embedding = gradients.pop(embedding_index(model))
    for i, tower in enumerate(towers):
        share = 1.0 if first_machine and i == 0 else 0.0

        def part(value: Any, share: float = share) -> tf.Tensor:
            return tf.constant(share * value)

        with tf.device(tower.device):
            projection = [tf.zeros(embedding.shape)] if model.projects_by_embedding else []
            others = [part(gradient) for gradient in gradients]
            sums.append(Sums(tf.constant(0.0), part(tokens), projection, others, part(embedding)))
    return Pending(sums, tf.range(len(embedding), dtype=tf.int64))
