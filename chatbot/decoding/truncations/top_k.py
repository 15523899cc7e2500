"""Top-k sampling (Fan et al., 2018)."""

import tensorflow as tf


def top_k(log_probs: tf.Tensor, k: int) -> tf.Tensor:
    """Keep the k most probable ids, and those that are as probable as the last of them."""
    least = tf.math.top_k(log_probs, k).values[:, -1:]  # [rows, 1]
    return tf.where(log_probs >= least, log_probs, -float("inf"))
