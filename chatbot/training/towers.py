"""Synchronous data parallelism: one gradient function, called once a tower; one update.

Each tower takes its own share of the global batch and returns sums. The sums meet, are divided by
the real tokens of the whole batch, clipped once and applied once, so that N towers do what one
device does with the whole batch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from chatbot.model.loss import sequence_loss
from chatbot.model.seq2seq import Seq2Seq

# A tower's share: source, target_in, target_out [rows, length] int32, weights [rows, length] float32.
Share = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]


class StepResult(NamedTuple):
    """What a step leaves on the devices; nothing is copied to the host until somebody looks."""

    loss_sums: tf.Tensor  # [towers] float32, nats
    weight_sums: tf.Tensor  # [towers] float32, real target tokens
    gradient_norm: tf.Tensor  # scalar, of the averaged gradient before clipping
    examples: tf.Tensor  # scalar int32, pairs in the global batch


def gradient_function(model: Seq2Seq) -> Any:
    """The pure function of a tower: (weights, share, tokens, seed) -> (loss sum, weight sum, dense gradients).

    weights: the values of model.trainable_variables. tokens: scalar, the real target tokens of the
    global batch, by which the gradient is divided. seed: [2] int32 for dropout.
    """

    @tf.function
    def tower_gradients(
        weights: list[tf.Tensor], share: Share, tokens: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        source, target_in, target_out, token_weights = share
        # One copy to this tower's device; else a loop over time would fetch the weights at each step.
        weights = [tf.identity(weight) for weight in weights]
        real = tf.where(token_weights > 0)  # [tokens, 2]
        values = zip(model.trainable_variables, weights, strict=True)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            with keras.StatelessScope(state_mapping=list(values)):
                logits = model(source, target_in, real, seed=seed)  # [tokens, vocabulary]
            loss_sum, weight_sum = sequence_loss(
                logits, tf.gather_nd(target_out, real), tf.gather_nd(token_weights, real)
            )
            objective = loss_sum / tokens
        # Dense: Keras's adaptive optimizers square each slice of a repeated word before adding them up.
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(objective, weights)]
        return loss_sum, weight_sum, gradients

    return tower_gradients


class Towers:
    """The training step over all towers.

    devices: the logical device of each tower. The variables live where they were made.
    """

    def __init__(
        self,
        model: Seq2Seq,
        optimizer: keras.Optimizer,
        devices: Sequence[str],
        max_gradient_norm: float,
        seed: int,
    ) -> None:
        self.devices = list(devices)
        self.variables = model.trainable_variables
        self.gradients = gradient_function(model)
        self._optimizer = optimizer
        self._max_gradient_norm = max_gradient_norm
        self._seed = seed
        self._function = tf.function(self._step)
        self._traced: dict[tuple[int, int], Any] = {}

    @property
    def traces(self) -> int:
        """How often the step was traced: once a bucket."""
        return self._function.experimental_get_tracing_count()

    def __call__(self, shares: Sequence[Share], number: int) -> StepResult:
        """Train on one global batch, a share a tower, all of one bucket's shape. number: the step, from 0."""
        shape = shares[0][0].shape[1], shares[0][1].shape[1]
        if shape not in self._traced:
            self._traced[shape] = self._function.get_concrete_function(
                tuple(_spec(*shape) for _ in self.devices), tf.TensorSpec([], tf.int32)
            )
        return self._traced[shape](tuple(map(tuple, shares)), tf.constant(number, tf.int32))

    def _step(self, shares: Sequence[Share], number: tf.Tensor) -> StepResult:
        tokens = tf.add_n([tf.reduce_sum(weights) for *_, weights in shares])
        home = self.variables[0].value.device
        with tf.device(home):
            values = [tf.identity(variable.value) for variable in self.variables]
        step_seed = tf.random.experimental.stateless_fold_in([self._seed, 0], number)
        results = []
        for tower, (device, share) in enumerate(zip(self.devices, shares, strict=True)):
            with tf.device(device):
                seed = tf.random.experimental.stateless_fold_in(step_seed, tower)
                results.append(self.gradients(values, share, tokens, seed))
        loss_sums, weight_sums, gradients = zip(*results, strict=True)
        with tf.device(home):
            summed = [tf.add_n(parts) for parts in zip(*gradients, strict=True)]
            clipped, norm = tf.clip_by_global_norm(summed, self._max_gradient_norm)
            self._optimizer.apply(clipped, self.variables)
            # A tower without a share of its own has a row without weight.
            examples = tf.add_n([tf.math.count_nonzero(w[:, 0], dtype=tf.int32) for *_, w in shares])
            return StepResult(tf.stack(loss_sums), tf.stack(weight_sums), norm, examples)


def _spec(source_length: int, target_length: int) -> tuple[tf.TensorSpec, ...]:
    """A share of a bucket: the lengths are static, the number of rows is not."""
    return (
        tf.TensorSpec([None, source_length], tf.int32),
        tf.TensorSpec([None, target_length], tf.int32),
        tf.TensorSpec([None, target_length], tf.int32),
        tf.TensorSpec([None, target_length], tf.float32),
    )
