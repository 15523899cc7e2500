"""The temperature of sampling."""

import tensorflow as tf


def temperature(log_probs: tf.Tensor, value: float) -> tf.Tensor:
    """Divide by the temperature. value: above 0; below 1 the distribution is sharper, above 1 flatter."""
    return log_probs / value
