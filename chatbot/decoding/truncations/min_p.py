"""Min-p sampling (Nguyen et al., 2024)."""

import tensorflow as tf


def min_p(log_probs: tf.Tensor, share: float) -> tf.Tensor:
    """Keep the ids that are at least `share` times as probable as the most probable one."""
    least = tf.reduce_max(log_probs, axis=-1, keepdims=True) + tf.math.log(share)
    return tf.where(log_probs >= least, log_probs, -float("inf"))
