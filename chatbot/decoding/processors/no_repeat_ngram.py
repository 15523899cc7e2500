"""No n-gram occurs twice in a hypothesis (Paulus et al., 2018)."""

import tensorflow as tf

from chatbot.decoding.processor import Prefix, Processor, stateless, unless_none_is_left


def no_repeat_ngram(size: int) -> Processor:
    """Forbid the ids that would complete an n-gram of `size` ids which the hypothesis has already."""

    def apply(log_probs: tf.Tensor, prefix: Prefix) -> tf.Tensor:
        if size > prefix.ids.shape[1]:
            return log_probs
        windows = prefix.ids.shape[1] - size + 1
        following = prefix.ids[:, size - 1 :]  # [hypotheses, windows], the last id of the n-gram at each position
        equal = tf.range(windows) + size - 1 < prefix.position  # [windows], the n-gram was generated
        for i in range(size - 1):
            last = prefix.ids[:, tf.maximum(prefix.position - (size - 1) + i, 0)]  # [hypotheses]
            equal &= prefix.ids[:, i : i + windows] == last[:, None]
        rows = tf.cast(tf.range(tf.shape(following)[0]), following.dtype)
        rows = tf.broadcast_to(rows[:, None], tf.shape(following))
        limits = tf.where(tf.broadcast_to(equal, tf.shape(following)), -float("inf"), float("inf"))
        forbidden = tf.tensor_scatter_nd_min(log_probs, tf.stack([rows, following], axis=-1), limits)
        return unless_none_is_left(forbidden, log_probs)

    return stateless(apply)
