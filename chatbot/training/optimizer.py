"""The update rule: fed once a step, with the gradient sums of the whole global batch.

TensorFlow's fused kernels rather than Keras's optimizers. Those sum gradients over replicas once more by
themselves, need a strategy's scope for their slots, and go over each weight ten times where a kernel goes once.
"""

from collections.abc import Sequence

import tensorflow as tf

# Kingma and Ba, 2015; epsilon as in Keras.
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7
MOMENTUM = 0.9

SLOTS = {"adam": 2, "momentum": 1, "sgd": 0}


def make_slots(rule: str, weights: Sequence[tf.Variable]) -> list[list[tf.Variable]]:
    """What the rule keeps of each weight, as zeros, on the weight's device."""
    slots = []
    for weight in weights:
        with tf.device(weight.device):
            slots.append([tf.Variable(tf.zeros_like(weight), trainable=False) for _ in range(SLOTS[rule])])
    return slots


def averaged(
    sums: Sequence[tf.Tensor], tokens: tf.Tensor, max_gradient_norm: float
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The gradients of the mean loss, scaled down to the largest global norm; and the norm before that.

    sums: gradients of the loss sum. tokens: what the sum is divided by. One pass does both.
    """
    tokens = tf.maximum(tokens, 1.0)  # a tower by itself may have had no pair
    norm = tf.linalg.global_norm(sums) / tokens
    scale = tf.minimum(1.0, max_gradient_norm / norm) / tokens
    gradients = []
    for gradient in sums:
        with tf.device(gradient.device):
            gradients.append(gradient * scale)
    return gradients, norm


def apply_update(
    rule: str,
    weight: tf.Variable,
    slots: Sequence[tf.Variable],
    gradient: tf.Tensor,
    rate: tf.Tensor,
    number: tf.Tensor,
) -> tf.Operation:
    """Change one weight and its slots in place. number: int64, how many updates with this one."""
    handles = [slot.handle for slot in slots]
    number = tf.cast(number, tf.float32)
    if rule == "adam":
        return tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=handles[0],
            v=handles[1],
            beta1_power=BETA_1**number,
            beta2_power=BETA_2**number,
            lr=rate,
            beta1=BETA_1,
            beta2=BETA_2,
            epsilon=EPSILON,
            grad=gradient,
            use_locking=True,
        )
    if rule == "momentum":
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=weight.handle, accum=handles[0], lr=rate, grad=gradient, momentum=MOMENTUM, use_locking=True
        )
    return tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=rate, delta=gradient, use_locking=True)
