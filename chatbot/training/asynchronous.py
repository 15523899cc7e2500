"""Asynchronous training: each worker updates variables on parameter servers without waiting for other workers.

The tf.distribute coordinator runs on the chief and dispatches each batch to an idle worker. If a worker dies, the
coordinator sends its batch to another worker. Each parameter server records which steps it has applied, so no update is
applied twice.
"""

import collections
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.model.operations import is_gpu
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.allreduce import tokens_or_nan
from chatbot.training.gradients import dense, gradient_function
from chatbot.training.machines.cluster import WORKER
from chatbot.training.optimizer import Clipped, average_and_clip, update_scalars
from chatbot.training.replica import Replica, TrainState, group_variables
from chatbot.training.share import Buffer, Preparation, Prepared, Share
from chatbot.training.variable_update import Graph, VariableUpdate, pack_result

CHIEF_DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"
# The maximum number of scheduled steps per worker: one is running and one is queued.
STEPS_PER_WORKER = 2
# The number of recent steps that a parameter server remembers. It must exceed the number of scheduled steps.
LEDGER_SIZE = 1024


class Server:
    """A parameter server: the indices of its weights, and a ledger of the steps it has applied."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.weights: list[int] = []
        with tf.device(device):
            # The ledger is a ring buffer: step n has been applied if the entry at n % LEDGER_SIZE is at least n.
            self._ledger = tf.Variable(tf.fill([LEDGER_SIZE], tf.constant(-1, tf.int64)), trainable=False)
            self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._lock = tf.CriticalSection(name="ledger")

    def forget_steps(self) -> None:
        """Clear the ledger. This must not be called while workers are running steps."""
        self._ledger.assign(tf.fill([LEDGER_SIZE], tf.constant(-1, tf.int64)))

    def apply_once(self, number: tf.Tensor, update: Callable[[], list[tf.Operation]]) -> Any:
        """Apply the update of step `number` unless it has already been applied, and return whether it was applied."""

        def apply() -> tf.Tensor:
            recorded = tf.raw_ops.ResourceScatterUpdate(resource=self._ledger.handle, indices=entry, updates=number)
            with tf.control_dependencies([recorded]):
                updates = [self.updates.assign_add(1, read_value=False), *update()]
            with tf.control_dependencies(updates):
                return tf.constant(True)

        def apply_if_new() -> tf.Tensor:
            return tf.cond(tf.gather(self._ledger, entry) < number, apply, lambda: tf.constant(False))

        entry = number % LEDGER_SIZE
        return self._lock.execute(apply_if_new, exclusive_resource_access=False)


def device_of_workers(workers: int) -> str:
    """Return the device on which workers compute the step: a GPU if every worker has one, or else the CPU."""
    gpus = (tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices("GPU"))
    with_gpu = {gpu.task for gpu in gpus if gpu.job == WORKER}
    return "/GPU:0" if len(with_gpu) == workers else "/CPU:0"


class Asynchronous(VariableUpdate):
    """The chief's part of asynchronous training: schedules steps on workers and collects the results.

    In each step, one worker computes the gradients of one batch and applies them on the parameter servers.

    Args:
        model: The chief's model.
        settings: The learning settings, with the optimizer and the seed.
        coordinator: The coordinator of tf.distribute, connected to the workers and parameter servers.
        workers: The number of workers.
        servers: The number of parameter servers.
    """

    def __init__(
        self, model: Seq2Seq, settings: LearningSettings, coordinator: Any, workers: int, servers: int
    ) -> None:
        super().__init__([f"worker_{i}" for i in range(workers)], 1)
        self._model = model
        self._settings = settings
        self._coordinator = coordinator
        self.servers = [Server(f"/job:ps/replica:0/task:{i}/device:CPU:0") for i in range(servers)]
        groups = group_variables(model, settings, 0)  # one variable per group
        # Assign each weight, in order of decreasing size, to the server with the smallest total size so far.
        sizes = [math.prod(group.shapes[0]) for group in groups]
        for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
            min(self.servers, key=lambda server: sum(sizes[j] for j in server.weights)).weights.append(i)
        devices = {i: server.device for server in self.servers for i in server.weights}
        self._replica = Replica(model, settings, groups, [devices[i] for i in range(len(sizes))], copies=True)
        device = device_of_workers(workers)
        # The workers use a copy of the model if they have GPUs, because the chief validates its own model on the CPU.
        self._worker_model = model.for_gpu() if is_gpu(device) else model
        self._gradients = gradient_function(self._worker_model, groups)
        self.preparation = Preparation(self._worker_model, settings.seed, [device], home=CHIEF_DEVICE)
        self._train_step_graph = Graph(self._train_step)
        self._in_flight: collections.deque[Any] = collections.deque()
        self._next_step = 0

    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Schedule a step on a worker. Blocks while too many steps are unfinished."""
        with tf.device(CHIEF_DEVICE):
            number = tf.constant(prepared.number, tf.int64)
            inputs = self.preparation.device_shares(prepared)[0][0], number, tf.constant(rate, tf.float32)
            function = self._train_step_graph.concrete(*inputs)
        self._in_flight.append(self._coordinator.schedule(function, args=inputs))
        self._next_step = prepared.number + 1
        if len(self._in_flight) > STEPS_PER_WORKER * len(self.tower_names):
            self._collect_oldest()

    def take_results(self) -> list[tf.Tensor]:
        """Return the results of the steps finished since the last call. Waits until there is at least one."""
        if not self._finished:
            self._collect_oldest()
        return super().take_results()

    def _collect_oldest(self) -> None:
        """Wait for the result of the step that was scheduled earliest."""
        value = self._in_flight.popleft()
        while True:
            try:
                worker, loss, weight, pairs, *applied = value.fetch()
                break
            except tf.errors.OpError:
                # The worker died before its result was fetched. The coordinator repeats the step on another worker, and
                # the ledger prevents a second update. done() raises errors that repetition cannot resolve, such as the
                # loss of a parameter server.
                self._coordinator.done()
                time.sleep(0.1)
        report = np.zeros((3, len(self.tower_names)), np.float32)
        report[:, int(worker)] = loss, weight, pairs
        self._finished.append(pack_result(tf.constant(report), *map(tf.constant, applied)))

    def _train_step(self, prepared: Share | Buffer, number: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Run a step on a worker: read the weights, compute gradients, and apply them on the parameter servers."""
        replica = self._replica
        weights = [tf.identity(weight) for weight in replica.weights]  # copies on the worker
        scale = None if replica.loss_scale is None else replica.loss_scale.read()
        share = self.preparation.tensors(prepared)
        sums = self._gradients(weights, share, scale)
        gradients = list(sums.groups)
        if replica.groups[-1].trained:
            shape = replica.groups[-1].shapes[0]
            gradients.append(dense(sums.projection, sums.rows, share.lookup_ids, shape, self._worker_model.on_gpu))
        tokens = tokens_or_nan(sums)
        clipped = average_and_clip(gradients, tokens, self._settings.max_gradient_norm, scale)
        scaling = [] if scale is None else [scale, clipped.overflow]
        applied = [
            self._apply(server, clipped, rate, number, scaling if server.device == replica.home else [])
            for server in self.servers
            if server.weights
        ]
        with tf.control_dependencies(applied):
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            values = worker, sums.loss, *tf.unstack(share.counts, 2), *clipped[1:]
            return tuple(tf.identity(value) for value in values)

    def _apply(
        self, server: Server, clipped: Clipped, rate: tf.Tensor, number: tf.Tensor, scaling: list[tf.Tensor]
    ) -> Any:
        """Update the weights of a parameter server, and the loss scale if `scaling` is not empty.

        Args:
            server: The parameter server.
            clipped: The clipped gradients of all weights.
            rate: The learning rate.
            number: The number of the step, counted from 0.
            scaling: The loss scale of the step and whether the step overflowed, or an empty list.
        """
        replica = self._replica
        gradients = {i: g for i, g in zip(replica.trained, clipped.gradients, strict=True) if i in server.weights}
        with tf.device(server.device):
            # Receive all tensors before changing any weight, so a dying worker cannot leave a partial update.
            received = tf.nest.map_structure(tf.identity, (gradients, rate, number, clipped.finite, scaling))
            with tf.control_dependencies(tf.nest.flatten(received)):
                gradients, rate, number, finite, scaling = tf.nest.map_structure(tf.identity, received)

            def update() -> list[tf.Operation]:
                scalars = update_scalars(rate, number + 1, finite)
                updates = [replica.update_group(i, gradient, scalars) for i, gradient in gradients.items()]
                if scaling and replica.loss_scale is not None:
                    step_scale, overflow = scaling
                    updates.append(replica.loss_scale.update(step_scale, finite, overflow))
                return updates

            return server.apply_once(number, update)

    def gather_state(self) -> TrainState:
        """Wait for all scheduled steps, and return the training state. Its update count is the next step's number."""
        while self._in_flight:
            self._collect_oldest()
        state = self._replica.gather_state()
        return state._replace(optimizer=[np.asarray(self._next_step, np.int64), *state.optimizer[1:]])

    def scatter_state(self, state: TrainState) -> None:
        """Copy the weights of the model and the training state to the parameter servers, and clear their ledgers."""
        while self._in_flight:
            self._collect_oldest()
        self._finished.clear()
        self._next_step = int(state.optimizer[0])
        for server in self.servers:
            server.forget_steps()
        self._worker_model.loss_size = self._model.loss_size
        self._replica.scatter_state(state)
