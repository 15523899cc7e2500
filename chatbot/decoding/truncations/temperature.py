"""The temperature of sampling."""

import tensorflow as tf

# A smaller temperature counts as this one, which leaves the most probable id alone and keeps its quotient finite.
LEAST = 1e-30


def temperature(log_probs: tf.Tensor, value: float) -> tf.Tensor:
    """Divide by the temperature. value: above 0; below 1 the distribution is sharper, above 1 flatter."""
    return log_probs / max(value, LEAST)
