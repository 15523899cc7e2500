"""Greedy search."""

import tensorflow as tf


def greedy(log_probs: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
    """Return the `Pick` of greedy search: the most probable id of each row."""
    return tf.argmax(log_probs, axis=-1)
