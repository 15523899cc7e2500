"""Locally typical sampling (Meister et al., 2023)."""

import tensorflow as tf

from chatbot.decoding.truncations.probability_mass import first_to_reach


def typical(log_probs: tf.Tensor, mass: float) -> tf.Tensor:
    """Keep the ids whose information is nearest to the entropy, the fewest whose probabilities sum to `mass` (< 1)."""
    normalised = tf.nn.log_softmax(log_probs)
    probabilities = tf.exp(normalised)
    entropy = -tf.reduce_sum(tf.math.multiply_no_nan(normalised, probabilities), axis=-1, keepdims=True)
    nearness = -tf.abs(normalised + entropy)  # -inf where an id is not allowed
    return tf.where(first_to_reach(nearness, probabilities, mass), log_probs, -float("inf"))
