"""The repetition penalty of Keskar et al. (2019), on log-probabilities."""

import tensorflow as tf

from chatbot.decoding.processor import Prefix, Processor, stateless


def repetition_penalty(penalty: float) -> Processor:
    """Multiply the log-probabilities of ids that the hypothesis has by `penalty`; divide them if they are above 0."""

    def apply(log_probs: tf.Tensor, prefix: Prefix) -> tf.Tensor:
        # Beyond the position are padding ids, which are not allowed: -inf stays -inf.
        of_ids = tf.gather(log_probs, prefix.ids, batch_dims=1)  # [hypotheses, max_length]
        penalised = tf.where(of_ids > 0, of_ids / penalty, of_ids * penalty)
        return replaced(log_probs, prefix.ids, penalised)

    return stateless(apply)


def replaced(log_probs: tf.Tensor, ids: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return the log-probabilities with new values at some ids; equal ids of a row need equal values.

    log_probs: [hypotheses, vocabulary]. ids, values: [hypotheses, number].
    """
    rows = tf.broadcast_to(tf.cast(tf.range(tf.shape(ids)[0]), ids.dtype)[:, None], tf.shape(ids))
    return tf.tensor_scatter_nd_update(log_probs, tf.stack([rows, ids], axis=-1), values)
