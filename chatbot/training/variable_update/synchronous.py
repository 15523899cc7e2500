"""The synchronous step: every tower computes gradients, their sums are exchanged, every replica gets the same update.

The synchronous variable updates differ in two points only: the number of replicas of the weights, and the exchange of
sums between them (`Exchange`). Each is a short function that makes a `Synchronous`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices import Tower
from chatbot.training.exchange import Exchange, broadcast
from chatbot.training.gradients import Share, Sums, accumulate_gradients, gradient_function, share_spec
from chatbot.training.variable_update.out_of_memory import is_out_of_memory, more_pieces
from chatbot.training.variable_update.replica import Replica, Values


class StepResult(NamedTuple):
    """The result of a step, on the devices; reading it copies it to the host."""

    loss_sums: tf.Tensor  # [towers of all machines] float32, nats
    weight_sums: tf.Tensor  # [towers of all machines] float32, real target tokens
    examples: tf.Tensor  # scalar float32, pairs in the global batch
    gradient_norm: tf.Tensor  # scalar float32, of the averaged gradient before clipping


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
        self._model, self._replicas, self._seed = model, list(replicas), seed
        self._exchange: Exchange = exchange or (lambda parts: parts)
        self._single_replica = exchange is None and len(replicas) == 1
        self._towers = [tower for _, towers in replicas for tower in towers]
        self._machine, self._machines = machine, machines
        shared = gradient_function(model)
        self.gradient_functions = [gradient_function(model, t.parts) if t.parts else shared for t in self._towers]
        self._accumulate, self._staged = accumulate, staged
        self._pending: list[Sums] | None = None  # staged: computed, not applied yet
        self._updates = 0  # equals the replicas' own count unless an update failed
        self._exchanging = False  # whether the last step got as far as the exchange
        self._finished: list[StepResult] = []
        self._read_weights_graph = _graph(self._read_weights)
        self._sum_gradients_graph = _graph(self._sum_gradients)
        self._apply_gradients_graph = _graph(self._apply_gradients)
        self._sum_report_graph = _graph(self._sum_report)
        self._split_shares(accumulate)

    def _split_shares(self, pieces: int) -> None:
        """Set the number of pieces of each share. The graphs that compute gradients are traced again."""
        self._pieces = pieces
        self._compute_gradients_graph = _graph(self._compute_gradients)
        self._train_step_graph = _graph(self._train_step)
        self._staged_step_graph = _graph(self._staged_step)
        self.concrete_functions: dict[tuple[Any, ...], Any] = {}

    @property
    def traces(self) -> int:
        """The number of times a step was traced: once a bucket, and once more for the first of staged steps."""
        graphs = self._compute_gradients_graph, self._train_step_graph, self._staged_step_graph
        return sum(graph.experimental_get_tracing_count() for graph in graphs)

    @property
    def tower_names(self) -> list[str]:
        """The names of the towers of this process, in the order of their shares."""
        return [tower.name for tower in self._towers]

    @property
    def num_shares(self) -> int:
        """The number of shares that a step takes in this process."""
        return len(self._towers)

    def finished_steps(self) -> list[StepResult]:
        """Return the results of the steps since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def __call__(self, shares: Sequence[Share], number: int, rate: float) -> None:
        """Train on one global batch.

        shares: one for each tower of this process, all of one bucket's shape. number: the step, counted from 0.
        rate: the learning rate. Raises UserError if memory does not suffice even for one pair at a time.
        """
        inputs = tuple(map(tuple, shares)), tf.constant(number)
        run_step = self._run_staged_step if self._staged else self._run_step
        while True:
            try:
                self._finished.append(run_step(inputs, tf.constant(rate, tf.float32)))
                return
            except tf.errors.OpError as error:
                if not is_out_of_memory(error):
                    raise
                first_time = self._pieces == self._accumulate
                rows = max(len(share[0]) for share in shares)
                intact = self._weights_intact()
                self._split_shares(more_pieces(error, number, self._pieces, rows, first_time, intact))

    def _weights_intact(self) -> bool:
        """Return whether no weight of any replica has changed, on any machine, in the step that failed."""
        if self._machines > 1 and (self._staged or self._exchanging):
            return False  # the other machines may have updated their weights
        return all(int(replica.updates.numpy()) == self._updates for replica, _ in self._replicas)

    def _run_step(self, inputs: tuple[Any, ...], rate: tf.Tensor) -> StepResult:
        """Run one graph for a single replica, which is faster; otherwise two.

        The first graph computes gradients, and the second exchanges and applies them. Memory runs out in the first
        graph, while no other replica waits and no weight changes.
        """
        if self._single_replica:
            result = self._concrete(self._train_step_graph, (*inputs, rate))(*inputs, rate)
        else:
            self._exchanging = False
            sums, report = self._concrete(self._compute_gradients_graph, inputs)(*inputs)
            self._exchanging = True
            result = self._apply_gradients_graph(sums, report, rate)
        self._updates += 1
        return result

    def _run_staged_step(self, inputs: tuple[Any, ...], rate: tf.Tensor) -> StepResult:
        if self._pending is None:
            self._pending, report = self._concrete(self._compute_gradients_graph, inputs)(*inputs)
            return self._sum_report_graph(report)
        inputs = *inputs, self._read_weights_graph(), self._pending, rate
        self._pending, result = self._concrete(self._staged_step_graph, inputs)(*inputs)
        self._updates += 1
        return result

    def _concrete(self, graph: Any, inputs: tuple[Any, ...]) -> Any:
        """Return the concrete function of this bucket, for any number of rows."""
        shares, *rest = inputs
        shape = shares[0][0].shape[1], shares[0][1].shape[1]
        key = (graph is self._compute_gradients_graph, *shape)
        if key not in self.concrete_functions:
            specs = tuple(share_spec(*shape) for _ in shares)
            self.concrete_functions[key] = graph.get_concrete_function(specs, *rest)
        return self.concrete_functions[key]

    # Traced methods: `_read_weights_graph` is the graph of `_read_weights`, and likewise for the others.

    def _read_weights(self) -> list[list[tf.Tensor]]:
        """Return the current weights of each replica, [replica][weight]."""
        return [[tf.identity(weight) for weight in replica.weights] for replica, _ in self._replicas]

    def _compute_gradients(self, shares: Sequence[Share], number: tf.Tensor) -> tuple[list[Sums], tf.Tensor]:
        return self._tower_sums(shares, number, self._read_weights())

    def _tower_sums(
        self, shares: Sequence[Share], number: tf.Tensor, weights: list[list[tf.Tensor]]
    ) -> tuple[list[Sums], tf.Tensor]:
        """Return the sums of each tower, and a report.

        The report is [3, towers of all machines] float32: losses, target tokens and pairs; 0 for other machines.
        """
        step_seed = tf.random.experimental.stateless_fold_in([self._seed, 0], number)
        first_tower, sums = self._machine * len(self._towers), []
        replica_of_tower = [i for i, (_, towers) in enumerate(self._replicas) for _ in towers]
        for i, (tower, replica, share) in enumerate(zip(self._towers, replica_of_tower, shares, strict=True)):
            with tf.device(tower.device):
                seed = tf.random.experimental.stateless_fold_in(step_seed, first_tower + i)
                gradients = self.gradient_functions[i]
                sums.append(accumulate_gradients(gradients, weights[replica], share, seed, self._pieces, tower.device))
        with tf.device(self._replicas[0][0].home):
            # A tower without a pair gets a row whose token weights are all 0.
            pairs = [tf.math.count_nonzero(token_weights[:, 0], dtype=tf.float32) for *_, token_weights in shares]
            report = tf.stack([[s.loss for s in sums], [s.weight for s in sums], pairs])  # [3, towers]
            towers_after = len(self._towers) * self._machines - first_tower - len(sums)
            return sums, tf.pad(report, [[0, 0], [first_tower, towers_after]])

    def _sum_gradients(
        self, sums: Sequence[Sums], report: tf.Tensor
    ) -> list[tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]]:
        """Return for each replica the gradients, target tokens and report, summed over all towers."""
        parts, remaining = [], list(sums)
        for i, (replica, towers) in enumerate(self._replicas):
            tower_sums, remaining = remaining[: len(towers)], remaining[len(towers) :]
            gradients = []
            for weight, *terms in zip(replica.weights, *(s.gradients for s in tower_sums), strict=True):
                with tf.device(weight.device):
                    gradients.append(tf.add_n(terms))
            with tf.device(replica.home):
                replica_report = tf.identity(report) if i == 0 else tf.zeros_like(report)
                parts.append([*gradients, tf.add_n([s.weight for s in tower_sums]), replica_report])
        return [(gradients, tokens, total) for *gradients, tokens, total in self._exchange(parts)]

    def _apply_gradients(self, sums: Sequence[Sums], report: tf.Tensor, rate: tf.Tensor) -> StepResult:
        """Sum the gradients over all towers and update every replica."""
        totals = self._sum_gradients(sums, report)
        norms = [
            replica.apply(gradients, tokens, rate)
            for (replica, _), (gradients, tokens, _) in zip(self._replicas, totals, strict=True)
        ]
        return _result(totals[0][2], norms[0])

    def _train_step(self, shares: Sequence[Share], number: tf.Tensor, rate: tf.Tensor) -> StepResult:
        return self._apply_gradients(*self._compute_gradients(shares, number), rate)

    def _staged_step(
        self,
        shares: Sequence[Share],
        number: tf.Tensor,
        weights: list[list[tf.Tensor]],
        pending: Sequence[Sums],
        rate: tf.Tensor,
    ) -> tuple[list[Sums], StepResult]:
        """Compute the gradients of this step and apply those of the last; neither depends on the other.

        weights: read by an earlier call. In the graph of tf.distribute's reduction, TensorFlow's graph optimiser would
        move some of the reads behind the update.
        """
        sums, report = self._tower_sums(shares, number, weights)
        return sums, self._apply_gradients(pending, report, rate)

    def _sum_report(self, report: tf.Tensor) -> StepResult:
        """Return the result of a staged run's first step, which updates nothing."""
        parts = [[report], *([tf.zeros_like(report)] for _ in self._replicas[1:])]
        return _result(self._exchange(parts)[0][0], tf.constant(0.0))

    def gather_state(self) -> Values:
        """Copy the weights into the model; return the rest of a checkpoint, which is the same on every machine."""
        state = self._replicas[0][0].gather_state()
        if self._staged:
            gradients: Any = [tf.zeros_like(w) for w in self._model.trainable_variables]
            tokens = tf.constant(0.0)
            if self._pending is not None:
                no_report = tf.zeros([3, len(self._towers) * self._machines])
                gradients, tokens, _ = self._sum_gradients_graph(self._pending, no_report)[0]
            state += [tensor.numpy() for tensor in (*gradients, tokens)]
        return state

    def scatter_state(self, state: Values) -> None:
        """Copy machine 0's model and state, as `gather_state` returns it, to every replica of every machine."""
        weights = [variable.value for variable in self._model.trainable_variables]
        if self._machines > 1:
            homes = [replica.home for replica, _ in self._replicas]
            received = broadcast(self._exchange, (*weights, *state), homes, source=self._machine == 0)
            for weight, value in zip(weights, received, strict=False):
                weight.assign(value)
            state = [new.numpy().astype(old.dtype) for old, new in zip(state, received, strict=True)]
        if self._staged:
            state, (*gradients, tokens) = state[: -len(weights) - 1], state[-len(weights) - 1 :]
            self._pending = self._pending_sums(gradients, tokens) if tokens > 0 else None
        for replica, _ in self._replicas:
            replica.scatter_state(state)
        self._updates = int(state[0])

    def _pending_sums(self, gradients: Values, tokens: Any) -> list[Sums]:
        """Return sums for each tower with the given total: all of it on tower 0 of machine 0, zeros elsewhere."""
        sums = []
        for i, tower in enumerate(self._towers):
            share = 1.0 if (self._machine, i) == (0, 0) else 0.0
            with tf.device(tower.device):
                scaled = [tf.constant(share * gradient) for gradient in gradients]
                sums.append(Sums(tf.constant(0.0), tf.constant(share * tokens), scaled))
        return sums


def _graph(function: Callable[..., Any]) -> Any:
    """Return a tf.function without AutoGraph: no branch depends on a tensor, and tracing is faster."""
    return tf.function(function, autograph=False)


def _result(report: tf.Tensor, norm: tf.Tensor) -> StepResult:
    losses, tokens, pairs = tf.unstack(report)
    return StepResult(losses, tokens, tf.reduce_sum(pairs), norm)
