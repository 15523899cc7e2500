"""Workers that do not wait for each other: each takes the next batch, and updates variables on parameter servers.

The chief makes the batches and hands each to whichever worker is free, by tf.distribute's coordinator;
a batch whose worker dies goes to another one. Every update is applied exactly once: a parameter server
keeps a ledger of the steps that it has applied (Dean et al., 2012, lose and repeat some).
"""

import collections
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.gradients import Share, gradient_function
from chatbot.training.optimizer import apply_update, averaged, make_slots
from chatbot.training.variable_update.replica import Values
from chatbot.training.variable_update.synchronous import StepResult, share_spec

HERE = "/job:chief/replica:0/task:0/device:CPU:0"
# Steps that may be under way for each worker: one it computes, one that is on its way to it.
AHEAD = 2
# Steps that a ledger remembers, more than can be under way: then an old number can be told from a new one.
REMEMBERED = 1024


class Shelf:
    """What one parameter server holds: some weights, their slots, and the ledger of the steps applied to them."""

    def __init__(self, device: str, rule: str) -> None:
        self.device, self._rule = device, rule
        self.weights: list[tf.Variable] = []
        self.slots: list[list[tf.Variable]] = []
        with tf.device(device):
            self._ledger = tf.Variable(tf.fill([REMEMBERED], tf.constant(-1, tf.int64)), trainable=False)
            self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)  # applied since the start; tests count it
            self._door = tf.CriticalSection(name="ledger")

    @property
    def bytes(self) -> int:
        """Of the weights."""
        return sum(4 * weight.shape.num_elements() for weight in self.weights)

    def add(self, value: tf.Tensor) -> None:
        """Keep a weight."""
        with tf.device(self.device):
            self.weights.append(tf.Variable(value))
        self.slots += make_slots(self._rule, self.weights[-1:])

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, number: tf.Tensor) -> Any:
        """Apply step `number` to all weights here, unless that was done before."""
        with tf.device(self.device):
            # All that comes over the wire is here before the first change: a worker that dies later leaves no half.
            arrived = [tf.identity(tensor) for tensor in (*gradients, rate, number)]
            with tf.control_dependencies(arrived):
                *gradients, rate, number = (tf.identity(tensor) for tensor in arrived)

            def once() -> tf.Tensor:
                place = number % REMEMBERED

                def first_time() -> tf.Tensor:
                    written = tf.raw_ops.ResourceScatterUpdate(
                        resource=self._ledger.handle, indices=place, updates=number
                    )
                    with tf.control_dependencies([written]):
                        done = [self.updates.assign_add(1, read_value=False)]
                        for weight, slots, gradient in zip(self.weights, self.slots, gradients, strict=True):
                            done.append(apply_update(self._rule, weight, slots, gradient, rate, number + 1))
                    with tf.control_dependencies(done):
                        return tf.constant(True)

                return tf.cond(tf.gather(self._ledger, place) < number, first_time, lambda: tf.constant(False))

            return self._door.execute(once, exclusive_resource_access=False)


class Asynchronous:
    """The chief's side: hands out steps, and collects what became of them.

    coordinator: of tf.distribute, connected to the workers and parameter servers. A step is one worker's
    batch of the full --batch-size.
    """

    num_shares = 1

    def __init__(
        self, model: Seq2Seq, settings: LearningSettings, coordinator: Any, workers: int, servers: int
    ) -> None:
        self._model, self._settings, self._coordinator = model, settings, coordinator
        self.tower_names = [f"worker_{i}" for i in range(workers)]
        self.shelves = [Shelf(f"/job:ps/replica:0/task:{i}/device:CPU:0", settings.optimizer) for i in range(servers)]
        variables = model.trainable_variables
        self._places: list[tuple[Shelf, int]] = [(self.shelves[0], 0)] * len(variables)
        for i in sorted(range(len(variables)), key=lambda i: -variables[i].value.shape.num_elements()):
            shelf = min(self.shelves, key=lambda shelf: shelf.bytes)
            self._places[i] = shelf, len(shelf.weights)
            shelf.add(variables[i].value)
        self._gradients = gradient_function(model)
        self._step = tf.function(self._stepped)
        self._traced: dict[tuple[int, int], Any] = {}
        self._under_way: collections.deque[Any] = collections.deque()
        self._ended: list[StepResult] = []
        self._next = 0  # the number of the next step

    @property
    def traces(self) -> int:
        """How often the step was traced: once a bucket, whichever worker runs it."""
        return self._step.experimental_get_tracing_count()

    def __call__(self, shares: Sequence[Share], number: int, rate: float) -> None:
        """Hand the batch to a worker. Waits while more than enough steps are under way."""
        (share,) = shares
        shape = share[0].shape[1], share[1].shape[1]
        with tf.device(HERE):
            inputs = tuple(share), tf.constant(number, tf.int64), tf.constant(rate, tf.float32)
            if shape not in self._traced:
                self._traced[shape] = self._step.get_concrete_function(share_spec(*shape), *inputs[1:])
        self._under_way.append(self._coordinator.schedule(self._traced[shape], args=inputs))
        self._next = number + 1
        if len(self._under_way) > AHEAD * len(self.tower_names):
            self._collect()

    def finished_steps(self) -> list[StepResult]:
        """The results of steps that ended since this was asked last, at least one."""
        if not self._ended:
            self._collect()
        ended, self._ended = self._ended, []
        return ended

    def _collect(self) -> None:
        """Wait for the step that was handed out first."""
        value = self._under_way.popleft()
        while True:
            try:
                loss, weight, pairs, norm, worker = value.fetch()
                break
            except tf.errors.OpError:  # of several kinds, by how quickly its worker came back
                # Its worker died after the step and before its result was fetched: it runs again, and finds itself
                # in the ledger. What cannot be mended so, such as a lost parameter server, this raises.
                self._coordinator.done()
                time.sleep(0.1)
        mine = np.eye(len(self.tower_names), dtype=np.float32)[int(worker)]
        self._ended.append(StepResult(*(tf.constant(x) for x in (mine * loss, mine * weight, pairs, norm))))

    def _stepped(self, share: Share, number: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        weights = [tf.identity(shelf.weights[at]) for shelf, at in self._places]
        step_seed = tf.random.experimental.stateless_fold_in([self._settings.seed, 0], number)
        sums = self._gradients(weights, share, tf.random.experimental.stateless_fold_in(step_seed, 0))
        gradients, norm = averaged(sums.gradients, sums.weight, self._settings.max_gradient_norm)
        done = []
        for shelf in self.shelves:
            if shelf.weights:
                places = {at: i for i, (other, at) in enumerate(self._places) if other is shelf}
                done.append(shelf.apply([gradients[places[at]] for at in range(len(places))], rate, number))
        with tf.control_dependencies(done):
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            pairs = tf.math.count_nonzero(share[3][:, 0], dtype=tf.float32)
            return tuple(tf.identity(x) for x in (sums.loss, sums.weight, pairs, norm, worker))

    def gather_state(self) -> Values:
        """Wait for all steps that are under way, then bring weights and slots here."""
        while self._under_way:
            self._collect()
        for variable, (shelf, at) in zip(self._model.trainable_variables, self._places, strict=True):
            variable.assign(shelf.weights[at].numpy())
        slots = [slot.numpy() for shelf, at in self._places for slot in shelf.slots[at]]
        return [np.asarray(self._next, np.int64), *slots]

    def scatter_state(self, state: Values) -> None:
        """Take the model's weights, and slots as `gather_state` returns them, to the parameter servers."""
        self._next = int(state[0])
        values = iter(state[1:])
        for variable, (shelf, at) in zip(self._model.trainable_variables, self._places, strict=True):
            shelf.weights[at].assign(variable.value)
            for slot in shelf.slots[at]:
                slot.assign(next(values))
