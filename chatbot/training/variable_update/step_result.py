"""The result of a training step."""

from typing import NamedTuple

import tensorflow as tf


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
