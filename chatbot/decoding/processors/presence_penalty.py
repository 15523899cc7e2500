"""A penalty for ids that were generated, however often."""

import tensorflow as tf

from chatbot.decoding.processor import Prefix, Processor, stateless
from chatbot.decoding.processors.repetition_penalty import replaced


def presence_penalty(penalty: float) -> Processor:
    """Subtract `penalty` nats from the log-probabilities of ids that the hypothesis has."""

    def apply(log_probs: tf.Tensor, prefix: Prefix) -> tf.Tensor:
        # Beyond the position are padding ids, which are not allowed: -inf stays -inf.
        of_ids = tf.gather(log_probs, prefix.ids, batch_dims=1)  # [hypotheses, max_length]
        return replaced(log_probs, prefix.ids, of_ids - penalty)

    return stateless(apply)
