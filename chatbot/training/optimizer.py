"""The optimizers, based on TensorFlow's fused kernels.

The optimizers of Keras are not used, because they are slower and sum gradients over replicas a second time.

If the loss or gradient is not finite, the update must not change any weight. The kernels then run with hyperparameters
that leave all variables unchanged, such as a learning rate of 0. A conditional would be slower, because its condition
would have to be copied from the GPU to the host.
"""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.learning import LearningSettings

MOMENTUM = 0.9
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7  # Adam, with the defaults of Keras
TINY = 1e-37  # prevents division by zero; smaller than any token weight, even at the minimum loss scale

NUM_SLOTS = {"adam": 2, "momentum": 1, "sgd": 0}
MIN_LOSS_SCALE = 2.0**-24
MAX_LOSS_SCALE = 2.0**24
# The loss scale is doubled after this many consecutive finite steps.
GROWTH_INTERVAL = 2000


def make_slots(rule: str, weight: tf.Variable) -> list[tf.Variable]:
    """Create the optimizer's state variables for a weight, filled with zeros, on the device of the weight."""
    with tf.device(weight.device):
        return [tf.Variable(tf.zeros_like(weight), trainable=False) for _ in range(NUM_SLOTS[rule])]


class Clipped(NamedTuple):
    """Clipped gradients of the mean loss."""

    gradients: list[tf.Tensor]  # clipped; zeros if `finite` is false
    norm: tf.Tensor  # global norm before clipping, scalar float32
    finite: tf.Tensor  # whether the norm is finite, scalar bool
    overflow: tf.Tensor  # whether the gradients overflowed in float16 because of the loss scale, scalar bool


def average_and_clip(
    sums: Sequence[tf.Tensor], tokens: tf.Tensor, max_gradient_norm: float, loss_scale: tf.Tensor | None = None
) -> Clipped:
    """Compute the gradients of the mean loss, clipped by their global norm.

    Each gradient is multiplied only once, by a factor that combines averaging and clipping.

    Args:
        sums: The gradients of the loss sum.
        tokens: The number of target tokens in the loss sum, scalar float32; NaN if the loss is not finite.
        max_gradient_norm: The maximum global norm.
        loss_scale: The loss scale by which `sums` and `tokens` are multiplied in float16, scalar float32; else None.
    """
    divisor = tf.maximum(tokens, TINY)  # A tower may have no tokens with --variable-update independent.
    norm = tf.linalg.global_norm(sums) / divisor
    finite = tf.math.is_finite(norm)
    scale = tf.where(finite, tf.minimum(1.0, max_gradient_norm / norm) / divisor, 0.0)
    gradients = []
    for gradient in sums:
        with tf.device(gradient.device):
            gradients.append(tf.math.multiply_no_nan(gradient, scale))  # returns 0 for NaN times 0
    overflow = tf.constant(False)
    if loss_scale is not None:  # `tokens` is NaN if the loss is not finite, and a smaller scale would not help then.
        overflow = ~finite & tf.math.is_finite(tokens) & (loss_scale > MIN_LOSS_SCALE)
    return Clipped(gradients, norm, finite, overflow)


class Scalars(NamedTuple):
    """The scalar inputs of `apply_update`, float32."""

    rate: tf.Tensor  # learning rate
    beta_1: tf.Tensor
    beta_2: tf.Tensor
    power_1: tf.Tensor  # beta_1 to the power of the number of updates
    power_2: tf.Tensor  # beta_2 to the power of the number of updates
    momentum: tf.Tensor
    epsilon: tf.Tensor
    applied: tf.Tensor  # 1 if the update is applied, 0 if it changes nothing


def update_scalars(rate: tf.Tensor, number: tf.Tensor, finite: tf.Tensor) -> Scalars:
    """Compute the scalar inputs of `apply_update`.

    Args:
        rate: The learning rate, scalar float32.
        number: The number of the update, counted from 1, scalar int64.
        finite: Whether the gradients are finite, scalar bool. If they are not, the update changes nothing.
    """
    exponent = tf.cast(tf.maximum(number, 1), tf.float32)  # `number` is 0 until an update is applied.
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
    average: tf.Variable, weight: tf.Variable, max_decay: float, number: tf.Tensor, applied: tf.Tensor
) -> tf.Operation:
    """Update the exponential moving average of a weight in place.

    The decay is min(max_decay, (1 + number) / (10 + number)). It is small at first, so the untrained weights soon lose
    their influence on the average.

    Args:
        average: The moving average.
        weight: The weight.
        max_decay: The decay after many updates.
        number: The number of the update, counted from 1, scalar int64.
        applied: 1 to update the average, or 0 to leave it unchanged, scalar float32.
    """
    rate = applied * tf.maximum(1 - max_decay, 9 / (10 + tf.cast(number, tf.float32)))
    return average.assign_sub(rate * (average - weight.read_value()), read_value=False)


def is_decayed(variable: keras.Variable) -> bool:
    """Return whether --weight-decay applies to a variable. Biases and gains are exempt."""
    return variable.name != "bias" and len(variable.shape) > 1


def apply_update(
    settings: LearningSettings,
    weight: tf.Variable,
    slots: Sequence[tf.Variable],
    gradient: tf.Tensor,
    scalars: Scalars,
    decayed: bool = False,
) -> tf.Operation:
    """Update a weight and its slots in place.

    Adam (Kingma and Ba, 2015) is implemented as in Keras: epsilon is added to the root of the second moment before bias
    correction. Weight decay is decoupled (Loshchilov and Hutter, 2019), as in PyTorch's AdamW: with every optimizer,
    the weight is multiplied by 1 - rate * decay before the update.

    Args:
        settings: The learning settings, with the optimizer and the weight decay.
        weight: The weight.
        slots: The slots from `make_slots`.
        gradient: The gradient from `average_and_clip`.
        scalars: The scalars from `update_scalars`.
        decayed: Whether weight decay applies to the weight.
    """
    decays = []
    if decayed and settings.weight_decay:
        decays.append(weight.assign_sub(scalars.rate * settings.weight_decay * weight, read_value=False))
    with tf.control_dependencies(decays):
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
            # The fused kernel of this momentum rule cannot leave the weight unchanged when an update is skipped.
            velocity = scalars.momentum * slots[0] - scalars.rate * gradient
            with tf.control_dependencies([slots[0].assign(velocity, read_value=False)]):
                return weight.assign_add(scalars.applied * velocity, read_value=False)
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=weight.handle, alpha=scalars.rate, delta=gradient, use_locking=True
        )


class LossScale:
    """The loss scale in float16, and the number of finite steps since the scale last changed.

    The scale is halved when gradients overflow, and doubled after many consecutive finite steps (Micikevicius et al.,
    2018). It starts at 1, because gradients of a loss sum are larger than those of a mean. It is always a power of two,
    so multiplication by it causes no rounding errors. The variable is created on the caller's device.
    """

    def __init__(self) -> None:
        self._variable = tf.Variable([1.0, 0.0], trainable=False)

    def read(self) -> tf.Tensor:
        """Return the scale, scalar float32."""
        return self._variable[0]

    def update(self, step_scale: tf.Tensor, finite: tf.Tensor, overflow: tf.Tensor) -> tf.Operation:
        """Halve the scale after an overflow, or double it after GROWTH_INTERVAL consecutive finite steps.

        Args:
            step_scale: The loss scale with which the step was computed. It differs from the current scale if an
                asynchronous step has changed the scale in the meantime.
            finite: Whether the loss and gradients of the step were finite, scalar bool.
            overflow: Whether the step overflowed, scalar bool.
        """
        scale, steps = tf.unstack(self._variable)
        steps = tf.where(finite, steps + 1, 0.0)
        doubled = steps >= GROWTH_INTERVAL
        steps = tf.where(doubled, 0.0, steps)
        larger = tf.where(doubled, tf.minimum(2 * scale, MAX_LOSS_SCALE), scale)
        scale = tf.where(overflow, tf.minimum(step_scale / 2, scale), larger)
        return self._variable.assign([scale, steps], read_value=False)

    def gather_state(self) -> npt.NDArray[np.float32]:
        """Return [log2 of the scale, number of finite steps], float32. Both are zero in a new run."""
        scale, steps = self._variable.numpy()
        return np.array([np.log2(scale), steps], np.float32)

    def scatter_state(self, state: npt.NDArray[np.float32]) -> None:
        """Restore a state from `gather_state`."""
        exponent, steps = state
        self._variable.assign([2.0**exponent, steps])
