"""The update rule, applied once a step to the gradient sums of the whole global batch.

It uses TensorFlow's fused kernels instead of Keras's optimizers. Keras's optimizers sum gradients over replicas a
second time, create their slots in a strategy's scope, and pass over each weight ten times, a kernel once.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from chatbot.config.learning import LearningSettings

MOMENTUM = 0.9

NUM_SLOTS = {"adam": 2, "momentum": 1, "sgd": 0}


def make_slots(rule: str, weights: Sequence[tf.Variable]) -> list[list[tf.Variable]]:
    """Return the rule's slots for each weight that is trained, filled with zeros, on the device of the weight."""
    slots = []
    for weight in weights:
        with tf.device(weight.device):
            slots.append([tf.Variable(tf.zeros_like(weight), trainable=False) for _ in range(NUM_SLOTS[rule])])
    return slots


def average_and_clip(
    sums: Sequence[tf.Tensor], tokens: tf.Tensor, max_gradient_norm: float
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return the gradients of the mean loss, clipped by their global norm, and the norm before clipping.

    sums: gradients of the loss sum. tokens: scalar float32, the number of target tokens in the loss sum.
    Each gradient is multiplied once, by the product of both factors.
    """
    tokens = tf.maximum(tokens, 1.0)  # with --variable-update independent a tower may have no pair
    norm = tf.linalg.global_norm(sums) / tokens
    scale = tf.minimum(1.0, max_gradient_norm / norm) / tokens
    gradients = []
    for gradient in sums:
        with tf.device(gradient.device):
            gradients.append(gradient * scale)
    return gradients, norm


def update_average(average: tf.Variable, weight: tf.Variable, highest_decay: float, number: tf.Tensor) -> tf.Operation:
    """Update an exponential moving average of a weight, in place.

    number: int64, of the update, counted from 1. The decay is min(highest_decay, (1 + number) / (10 + number)), so that
    the first averages forget the untrained weights (as in tf.train.ExponentialMovingAverage).
    """
    share = tf.maximum(1 - highest_decay, 9 / (10 + tf.cast(number, tf.float32)))
    return average.assign_sub(share * (average - weight.read_value()), read_value=False)


def is_decayed(variable: keras.Variable) -> bool:
    """Return whether --weight-decay applies: to kernels and embeddings, not to biases and vectors of gains."""
    return variable.name != "bias" and len(variable.shape) > 1


def beta_powers(settings: LearningSettings, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return Adam's powers of its two betas, for `apply_update`. number: int64, of the update, counted from 1."""
    exponent = tf.cast(number, tf.float32)
    return settings.beta_1**exponent, settings.beta_2**exponent


def apply_update(
    settings: LearningSettings,
    weight: tf.Variable,
    slots: Sequence[tf.Variable],
    gradient: tf.Tensor,
    rate: tf.Tensor,
    powers: tuple[tf.Tensor, tf.Tensor],
    decayed: bool = False,
) -> tf.Operation:
    """Update one weight and its slots in place.

    rate: scalar float32, the learning rate. powers: from `beta_powers`, used by Adam only. decayed: from `is_decayed`.

    Adam is that of Kingma and Ba (2015), in the form at the end of their section 2, whose epsilon is added to the root
    of the uncorrected mean of squares, as in Keras. Weight decay is decoupled (Loshchilov and Hutter, 2019): the weight
    is multiplied by 1 - rate * decay before the update, as in PyTorch's AdamW, with every rule.
    """
    if decayed and settings.weight_decay:
        with tf.control_dependencies([weight.assign_sub(rate * settings.weight_decay * weight, read_value=False)]):
            return _apply_gradient(settings, weight, slots, gradient, rate, powers)
    return _apply_gradient(settings, weight, slots, gradient, rate, powers)


def _apply_gradient(
    settings: LearningSettings,
    weight: tf.Variable,
    slots: Sequence[tf.Variable],
    gradient: tf.Tensor,
    rate: tf.Tensor,
    powers: tuple[tf.Tensor, tf.Tensor],
) -> tf.Operation:
    handles = [slot.handle for slot in slots]
    if settings.optimizer == "adam":
        return tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=handles[0],
            v=handles[1],
            beta1_power=powers[0],
            beta2_power=powers[1],
            lr=rate,
            beta1=settings.beta_1,
            beta2=settings.beta_2,
            epsilon=settings.epsilon,
            grad=gradient,
            use_locking=True,
        )
    if settings.optimizer == "momentum":
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=weight.handle, accum=handles[0], lr=rate, grad=gradient, momentum=MOMENTUM, use_locking=True
        )
    return tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=rate, delta=gradient, use_locking=True)
