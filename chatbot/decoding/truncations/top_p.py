"""Nucleus sampling (Holtzman et al., 2020)."""

import tensorflow as tf

from chatbot.decoding.truncations.probability_mass import first_to_reach


def top_p(log_probs: tf.Tensor, mass: float) -> tf.Tensor:
    """Keep the most probable ids, the fewest whose probabilities sum to at least `mass`, which is below 1."""
    return tf.where(first_to_reach(log_probs, tf.nn.softmax(log_probs), mass), log_probs, -float("inf"))
