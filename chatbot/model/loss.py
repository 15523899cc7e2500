"""The weighted loss of a sequence, as sums: what towers add up before anyone divides."""

import tensorflow as tf


def sequence_loss(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Summed cross-entropy in nats, and the summed weights, both scalar float32.

    logits [..., vocabulary], targets [...] int32, weights [...] float32 (0 at padding). Unlike
    tf.contrib.seq2seq.sequence_loss it does not divide: N towers with ragged lengths must first add
    losses and counts, or short towers would weigh too much.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, tf.cast(logits, tf.float32))
    return tf.reduce_sum(losses * weights), tf.reduce_sum(weights)
