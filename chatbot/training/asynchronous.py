"""Asynchronous updates: each worker takes the next batch and updates variables on parameter servers without waiting.

The chief makes the batches, and tf.distribute's coordinator gives each to a free worker; a batch whose worker dies
goes to another one. Every update is applied exactly once, because each parameter server keeps a ledger of the
steps that it has applied. DistBelief (Dean et al., 2012) may lose or repeat updates.
"""

import collections
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.corpus.batches import GlobalBatch
from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.training.allreduce import counted_tokens
from chatbot.training.buffer import Buffer
from chatbot.training.gradients import dense, gradient_function
from chatbot.training.machines.cluster import WORKER
from chatbot.training.optimizer import (
    LossScale,
    apply_update,
    average_and_clip,
    is_decayed,
    is_overflow,
    make_slots,
    trained_indices,
    update_scalars,
)
from chatbot.training.replica import Values
from chatbot.training.share import Preparation, Prepared, Share
from chatbot.training.step import Graph, StepResult

CHIEF_DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"
# Scheduled steps for each worker: one that it computes and one in its queue.
STEPS_PER_WORKER = 2
# Entries of a ledger. Fewer steps are in flight, so an entry is overwritten only after its step was applied.
LEDGER_SIZE = 1024


class ServerShard:
    """The variables of one parameter server: a part of the weights, their slots, and the ledger of applied steps.

    loss_scale: that of all workers, on the first server in float16; else None.
    """

    def __init__(self, device: str, settings: LearningSettings) -> None:
        self.device, self._settings = device, settings
        self.weights: list[tf.Variable] = []
        self.trained: list[int] = []  # the indices of the weights that are trained
        self.slots: list[list[tf.Variable]] = []  # of each weight, an empty list of one that is not trained
        self._decayed: list[bool] = []
        self.loss_scale: LossScale | None = None
        with tf.device(device):
            # Step n is applied if entry n % LEDGER_SIZE is at least n.
            self._ledger = tf.Variable(tf.fill([LEDGER_SIZE], tf.constant(-1, tf.int64)), trainable=False)
            self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)  # applied since the start, for tests
            self._lock = tf.CriticalSection(name="ledger")

    @property
    def bytes(self) -> int:
        """The size of the weights."""
        return sum(4 * weight.shape.num_elements() for weight in self.weights)

    def add(self, variable: keras.Variable, trained: bool) -> None:
        """Store a weight of the model."""
        with tf.device(self.device):
            self.weights.append(tf.Variable(variable.value))
        if trained:
            self.trained.append(len(self.weights) - 1)
        self.slots += make_slots(self._settings.optimizer, self.weights[-1:]) if trained else [[]]
        self._decayed.append(is_decayed(variable))

    def forget_steps(self) -> None:
        """Empty the ledger. No step may be in flight."""
        self._ledger.assign(tf.fill([LEDGER_SIZE], tf.constant(-1, tf.int64)))

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        rate: tf.Tensor,
        number: tf.Tensor,
        finite: tf.Tensor,
        scaling: Sequence[tf.Tensor] = (),
    ) -> Any:
        """Update the trained weights of this shard by step `number`; return whether it had not been applied before.

        gradients, finite: from `average_and_clip`. scaling: for the loss scale of this shard, the scale of the step and
        whether it overflowed.
        """
        with tf.device(self.device):
            # All tensors are received before the first weight changes, so a worker that dies leaves no partial update.
            values = [*gradients], rate, number, finite, [*scaling]
            received = tf.nest.map_structure(tf.identity, values)
            with tf.control_dependencies(tf.nest.flatten(received)):
                gradients, rate, number, finite, scaling = tf.nest.map_structure(tf.identity, received)

            def apply_once() -> tf.Tensor:
                entry = number % LEDGER_SIZE

                def apply_gradients() -> tf.Tensor:
                    recorded = tf.raw_ops.ResourceScatterUpdate(
                        resource=self._ledger.handle, indices=entry, updates=number
                    )
                    with tf.control_dependencies([recorded]):
                        updates = [self.updates.assign_add(1, read_value=False)]
                        if self.loss_scale is not None:
                            used, overflow = scaling
                            updates.append(self.loss_scale.update(used, finite, overflow))
                        scalars = update_scalars(rate, number + 1, finite)
                        for i, gradient in zip(self.trained, gradients, strict=True):
                            updates.append(
                                apply_update(
                                    self._settings,
                                    self.weights[i],
                                    self.slots[i],
                                    gradient,
                                    scalars,
                                    self._decayed[i],
                                )
                            )
                    with tf.control_dependencies(updates):
                        return tf.constant(True)

                not_applied = tf.gather(self._ledger, entry) < number
                return tf.cond(not_applied, apply_gradients, lambda: tf.constant(False))

            return self._lock.execute(apply_once, exclusive_resource_access=False)


def device_of_workers(workers: int) -> str:
    """Return the device for which the step is traced, once for all workers: a GPU if every worker has one.

    The chief computes on its CPU, and TensorFlow lists the devices of the whole cluster to it.
    """
    found = (tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices("GPU"))
    with_gpu = {device.task for device in found if device.job == WORKER}
    return "/GPU:0" if len(with_gpu) == workers else "/CPU:0"


class Asynchronous:
    """The training step of the chief, which schedules steps on workers and collects their results.

    coordinator: tf.distribute's, connected to the workers and parameter servers. workers, servers: their numbers.
    A step is one batch of --batch-size pairs on one worker.
    """

    num_shares = 1

    def __init__(
        self, model: Seq2Seq, settings: LearningSettings, coordinator: Any, workers: int, servers: int
    ) -> None:
        self._model, self._settings, self._coordinator = model, settings, coordinator
        self.tower_names = [f"worker_{i}" for i in range(workers)]
        self.shards = [ServerShard(f"/job:ps/replica:0/task:{i}/device:CPU:0", settings) for i in range(servers)]
        variables, self._trained = model.trainable_variables, trained_indices(model, settings)
        # The shard of each variable and its index in the shard. The largest variables come first, each to the smallest
        # shard.
        self._locations: list[tuple[ServerShard, int]] = [(self.shards[0], 0)] * len(variables)
        for i in sorted(range(len(variables)), key=lambda i: -variables[i].value.shape.num_elements()):
            shard = min(self.shards, key=lambda shard: shard.bytes)
            self._locations[i] = shard, len(shard.weights)
            shard.add(variables[i], i in self._trained)
        if model.precision == "float16":
            with tf.device(self.shards[0].device):
                self.shards[0].loss_scale = LossScale()
        self._device = device_of_workers(workers)
        self._gradients = gradient_function(model, self._device)
        self._preparation = Preparation(model, settings.seed, [self._device], home=CHIEF_DEVICE)
        self._train_step_graph = Graph(self._train_step)
        self._in_flight: collections.deque[Any] = collections.deque()
        self._finished: list[StepResult] = []
        self._next_step = 0

    @property
    def traces(self) -> int:
        """The number of times the step was traced: once, for all workers."""
        return self._train_step_graph.traces

    @property
    def is_tracing(self) -> bool:
        """Whether the step is being traced."""
        return self._train_step_graph.is_tracing

    def prepare(self, batch: GlobalBatch, number: int) -> Prepared:
        """Prepare the batch of step `number`, counted from 0. Any thread may call this."""
        return self._preparation(batch, number)

    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Schedule a step on a worker. Waits while every worker has its full number of steps."""
        with tf.device(CHIEF_DEVICE):
            number = tf.constant(prepared.number, tf.int64)
            inputs = prepared.shares[0][0], prepared.used, number, tf.constant(rate, tf.float32)
            function = self._train_step_graph.concrete(*inputs)
        self._in_flight.append(self._coordinator.schedule(function, args=inputs))
        self._next_step = prepared.number + 1
        if len(self._in_flight) > STEPS_PER_WORKER * len(self.tower_names):
            self._collect_oldest()

    def finished_steps(self) -> list[StepResult]:
        """Return the results of the steps that finished since the last call, at least one."""
        if not self._finished:
            self._collect_oldest()
        finished, self._finished = self._finished, []
        return finished

    def _collect_oldest(self) -> None:
        """Wait for the result of the step that was scheduled first."""
        value = self._in_flight.popleft()
        while True:
            try:
                worker, loss, weight, pairs, *applied = value.fetch()
                break
            except tf.errors.OpError:  # the subclass depends on how soon the worker restarts
                # The worker died after the step and before its result was fetched. The coordinator runs the step
                # again, and the ledger prevents a second update. done() raises errors that a new worker cannot solve,
                # such as a lost parameter server.
                self._coordinator.done()
                time.sleep(0.1)
        losses, weights = np.zeros((2, len(self.tower_names)), np.float32)
        losses[int(worker)], weights[int(worker)] = loss, weight
        self._finished.append(StepResult(*map(tf.constant, (losses, weights, pairs, *applied))))

    def _train_step(
        self, prepared: Share | Buffer, used: tf.Tensor, number: tf.Tensor, rate: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Run on a worker: read the weights, compute gradients and apply them on the parameter servers."""
        weights = [tf.identity(shard.weights[index]) for shard, index in self._locations]
        loss_scale = self.shards[0].loss_scale
        scale = None if loss_scale is None else loss_scale.read()
        share = self._preparation.tensors(prepared)
        sums = self._gradients(weights, share, tf.shape(used)[0], scale)
        sums_of_weights = list(sums.others)
        shape = self._model.embedding.embeddings.shape
        sums_of_weights.insert(embedding_index(self._model), dense(sums.projection, sums.rows, used, shape))
        trained_sums = [sums_of_weights[i] for i in self._trained]
        tokens = counted_tokens(sums)
        clipped = average_and_clip(trained_sums, tokens, self._settings.max_gradient_norm)
        scaling = [] if scale is None else [scale, is_overflow(scale, clipped.finite, tokens)]
        gradients = dict(zip(self._trained, clipped.gradients, strict=True))
        applied = []
        for shard in self.shards:
            if shard.weights:
                variables = {index: i for i, (other, index) in enumerate(self._locations) if other is shard}
                shard_gradients = [gradients[variables[index]] for index in shard.trained]
                of_shard = scaling if shard.loss_scale else []
                applied.append(shard.apply(shard_gradients, rate, number, clipped.finite, of_shard))
        with tf.control_dependencies(applied):
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            values = worker, sums.loss, *tf.unstack(share.counts, 2), clipped.norm, clipped.finite, *scaling[1:]
            return tuple(tf.identity(value) for value in values)

    def gather_state(self) -> Values:
        """Wait for all scheduled steps, copy the weights into the model, and return the rest of a checkpoint.

        That is the next step, the slots, and the loss scale of float16.
        """
        while self._in_flight:
            self._collect_oldest()
        for variable, (shard, index) in zip(self._model.trainable_variables, self._locations, strict=True):
            variable.assign(shard.weights[index].numpy())
        slots = [slot.numpy() for shard, index in self._locations for slot in shard.slots[index]]
        loss_scale = self.shards[0].loss_scale
        scale_state = [loss_scale.gather_state()] if loss_scale else []
        return [np.asarray(self._next_step, np.int64), *slots, *scale_state]

    def scatter_state(self, state: Values) -> None:
        """Copy the model's weights, and a state as `gather_state` returns it, to the parameter servers.

        The steps after that of the state are applied once more.
        """
        while self._in_flight:
            self._collect_oldest()
        self._finished.clear()
        if self.shards[0].loss_scale:
            *state, scale_state = state
            self.shards[0].loss_scale.scatter_state(scale_state)
        self._next_step = int(state[0])
        for shard in self.shards:
            shard.forget_steps()
        values = iter(state[1:])
        for variable, (shard, index) in zip(self._model.trainable_variables, self._locations, strict=True):
            shard.weights[index].assign(variable.value)
            for slot in shard.slots[index]:
                slot.assign(next(values))
