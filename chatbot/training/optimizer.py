"""The update rule, applied once a step to the gradient sums of the whole global batch.

By TensorFlow's fused kernels: Keras's optimizers pass over each weight ten times, and sum over replicas again. An
update whose loss or gradient is not finite changes nothing, by scalars with which the kernels leave their variables as
they are: the condition of a branch would have to be copied from a GPU to the host.
"""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.learning import LearningSettings

MOMENTUM = 0.9
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7  # Adam's, as in Keras
TINY = 1e-37  # less than the weight of any token, also times the smallest loss scale; its inverse is finite

NUM_SLOTS = {"adam": 2, "momentum": 1, "sgd": 0}
SMALLEST_SCALE = 2.0**-24
LARGEST_SCALE = 2.0**24
# The scale is doubled after this number of finite steps in a row.
DOUBLED_AFTER = 2000


def make_slots(rule: str, weight: tf.Variable) -> list[tf.Variable]:
    """Return the rule's slots of a weight, filled with zeros, on its device."""
    with tf.device(weight.device):
        return [tf.Variable(tf.zeros_like(weight), trainable=False) for _ in range(NUM_SLOTS[rule])]


class Clipped(NamedTuple):
    """Gradients of the mean loss."""

    gradients: list[tf.Tensor]  # clipped; zeros if `finite` is false
    norm: tf.Tensor  # scalar float32, before clipping
    finite: tf.Tensor  # scalar bool: the norm is finite
    overflow: tf.Tensor  # scalar bool: from `is_overflow`; false but in float16


def average_and_clip(
    sums: Sequence[tf.Tensor], tokens: tf.Tensor, max_gradient_norm: float, loss_scale: tf.Tensor | None = None
) -> Clipped:
    """Return the gradients of the mean loss, clipped by their global norm.

    sums: gradients of the loss sum. tokens: scalar float32, the number of target tokens in it, NaN if the loss is not
    finite. loss_scale: the factor of both in float16. Each gradient is multiplied once, by the product of both factors.
    """
    counted = tf.maximum(tokens, TINY)  # with --variable-update independent a tower may have no pair
    norm = tf.linalg.global_norm(sums) / counted
    finite = tf.math.is_finite(norm)
    scale = tf.where(finite, tf.minimum(1.0, max_gradient_norm / norm) / counted, 0.0)
    gradients = []
    for gradient in sums:
        with tf.device(gradient.device):
            gradients.append(tf.math.multiply_no_nan(gradient, scale))  # a product with 0 is 0, also that of NaN
    overflow = tf.constant(False) if loss_scale is None else is_overflow(loss_scale, finite, tokens)
    return Clipped(gradients, norm, finite, overflow)


class Scalars(NamedTuple):
    """The scalars of an update, float32, for `apply_update`."""

    rate: tf.Tensor  # the learning rate
    beta_1: tf.Tensor
    beta_2: tf.Tensor
    power_1: tf.Tensor  # beta_1 to the power of the number of updates
    power_2: tf.Tensor
    momentum: tf.Tensor
    epsilon: tf.Tensor
    applied: tf.Tensor  # 1, or 0 for an update that changes nothing


def update_scalars(rate: tf.Tensor, number: tf.Tensor, finite: tf.Tensor) -> Scalars:
    """Return the scalars of update `number`, int64, from 1; those of one that changes nothing if it is not finite."""
    exponent = tf.cast(tf.maximum(number, 1), tf.float32)  # 0 before the first update that is applied
    one, *factors = map(tf.constant, (1.0, BETA_1, BETA_2, MOMENTUM))
    beta_1, beta_2, momentum = (tf.where(finite, factor, one) for factor in factors)
    return Scalars(
        rate=tf.where(finite, rate, 0.0),
        beta_1=beta_1,
        beta_2=beta_2,
        power_1=factors[0] ** exponent,
        power_2=factors[1] ** exponent,
        momentum=momentum,
        epsilon=tf.constant(EPSILON),
        applied=tf.cast(finite, tf.float32),
    )


def update_average(
    average: tf.Variable, weight: tf.Variable, highest_decay: float, number: tf.Tensor, applied: tf.Tensor
) -> tf.Operation:
    """Update an exponential moving average of a weight, in place. number: of the update, from 1.

    The decay is min(highest_decay, (1 + number) / (10 + number)), so that the first averages forget the untrained
    weights.
    """
    share = applied * tf.maximum(1 - highest_decay, 9 / (10 + tf.cast(number, tf.float32)))
    return average.assign_sub(share * (average - weight.read_value()), read_value=False)


def is_decayed(variable: keras.Variable) -> bool:
    """Return whether --weight-decay applies: to kernels and embeddings, not to biases and vectors of gains."""
    return variable.name != "bias" and len(variable.shape) > 1


def apply_update(
    settings: LearningSettings,
    weight: tf.Variable,
    slots: Sequence[tf.Variable],
    gradient: tf.Tensor,
    scalars: Scalars,
    decayed: bool = False,
) -> tf.Operation:
    """Update one weight and its slots in place.

    gradient: from `average_and_clip`. decayed: from `is_decayed`.

    Adam is that of Kingma and Ba (2015), in the form at the end of their section 2, whose epsilon is added to the root
    of the uncorrected mean of squares, as in Keras. Weight decay is decoupled (Loshchilov and Hutter, 2019): the weight
    is multiplied by 1 - rate * decay before the update, as in PyTorch's AdamW, with every rule.
    """
    first = []
    if decayed and settings.weight_decay:
        first.append(weight.assign_sub(scalars.rate * settings.weight_decay * weight, read_value=False))
    with tf.control_dependencies(first):
        if settings.optimizer == "adam":
            return tf.raw_ops.ResourceApplyAdam(
                var=weight.handle,
                m=slots[0].handle,
                v=slots[1].handle,
                beta1_power=scalars.power_1,
                beta2_power=scalars.power_2,
                lr=scalars.rate,
                beta1=scalars.beta_1,
                beta2=scalars.beta_2,
                epsilon=scalars.epsilon,
                grad=gradient,
                use_locking=True,
            )
        if settings.optimizer == "momentum":
            # No kernel with Keras's rule leaves the weight as it is when there is nothing to add.
            velocity = scalars.momentum * slots[0] - scalars.rate * gradient
            with tf.control_dependencies([slots[0].assign(velocity, read_value=False)]):
                return weight.assign_add(scalars.applied * velocity, read_value=False)
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=weight.handle, alpha=scalars.rate, delta=gradient, use_locking=True
        )


class LossScale:
    """The factor of the loss in float16, and the finite steps since it last changed, on the caller's device.

    Gradients that overflow halve it, many finite steps in a row double it. It starts at 1, since the loss is a sum;
    Micikevicius et al. (2018) scale the small gradients of a mean up. It is a power of two, so that it changes no bit
    of a gradient within the range.
    """

    def __init__(self) -> None:
        self._variable = tf.Variable([1.0, 0.0], trainable=False)

    def read(self) -> tf.Tensor:
        """Return the scale, scalar float32."""
        return self._variable[0]

    def update(self, used: tf.Tensor, finite: tf.Tensor, overflow: tf.Tensor) -> tf.Operation:
        """Halve the scale after an overflow, or double it after DOUBLED_AFTER finite steps in a row.

        used: the scale of the gradients; asynchronous steps that overflow with the same one halve it once. finite,
        overflow: scalar bool.
        """
        scale, steps = tf.unstack(self._variable)
        steps = tf.where(finite, steps + 1, 0.0)
        doubled = steps >= DOUBLED_AFTER
        steps = tf.where(doubled, 0.0, steps)
        larger = tf.where(doubled, tf.minimum(2 * scale, LARGEST_SCALE), scale)
        scale = tf.where(overflow, tf.minimum(used / 2, scale), larger)
        return self._variable.assign([scale, steps], read_value=False)

    def gather_state(self) -> npt.NDArray[np.float32]:
        """Return the logarithm of the scale to base 2, and the finite steps, [2]. A new run has zeros."""
        scale, steps = self._variable.numpy()
        return np.array([np.log2(scale), steps], np.float32)

    def scatter_state(self, state: npt.NDArray[np.float32]) -> None:
        """Continue from a state as `gather_state` returns it."""
        exponent, steps = state
        self._variable.assign([2.0**exponent, steps])


def is_overflow(used: tf.Tensor, finite: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Return whether an update was skipped because the loss scale was too large, scalar bool.

    used: the scale of the gradients. finite: whether the update is applied. tokens: NaN if the loss is not finite, when
    no scale helps.
    """
    return ~finite & tf.math.is_finite(tokens) & (used > SMALLEST_SCALE)
