"""The least length of a hypothesis."""

import numpy as np
import tensorflow as tf

from chatbot.decoding.processor import Prefix, Processor, stateless, unless_none_is_left


def min_length(length: int, end: int) -> Processor:
    """Forbid the end symbol before `length` ids."""

    def apply(log_probs: tf.Tensor, prefix: Prefix) -> tf.Tensor:
        too_early = (np.arange(log_probs.shape[-1]) == end) & (prefix.position < length)
        return unless_none_is_left(tf.where(too_early, -float("inf"), log_probs), log_probs)

    return stateless(apply)
