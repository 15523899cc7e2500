"""A penalty for each time that an id was generated."""

import tensorflow as tf

from chatbot.decoding.processor import Prefix, Processor, stateless
from chatbot.decoding.processors.repetition_penalty import replaced


def frequency_penalty(penalty: float) -> Processor:
    """Subtract `penalty` nats from an id's log-probability for each time that the hypothesis has it."""

    def apply(log_probs: tf.Tensor, prefix: Prefix) -> tf.Tensor:
        ids = prefix.ids  # beyond the position padding ids, whose log-probability is -inf and stays so
        counts = tf.reduce_sum(tf.cast(ids[:, :, None] == ids[:, None, :], tf.float32), axis=-1)
        of_ids = tf.gather(log_probs, ids, batch_dims=1)  # [hypotheses, max_length]
        return replaced(log_probs, ids, of_ids - penalty * counts)

    return stateless(apply)
