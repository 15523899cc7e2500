"""The loss of a sequence by Keras, which the losses of the model are compared with."""

import keras
import tensorflow as tf


def sequence_loss(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
    """The weighted cross-entropy in nats, summed. logits [..., vocabulary]; targets, weights [...]."""
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=label_smoothing, reduction="none")
    return tf.reduce_sum(weights * loss(tf.one_hot(targets, logits.shape[-1]), logits))
