"""The weighted loss of a sequence, as a sum."""

import tensorflow as tf


def sequence_loss(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return the weighted cross-entropy in nats, summed over all positions: scalar float32.

    logits [..., vocabulary], targets [...] int32, weights [...] float32, 0 at padding.

    Unlike tf.contrib.seq2seq.sequence_loss, this does not divide by the weights: the mean over several towers is the
    sum of their losses over the sum of their weights. A mean of means would weight a tower with short targets too much.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, tf.cast(logits, tf.float32))
    return tf.reduce_sum(losses * weights)
