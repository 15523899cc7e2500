"""The weighted loss of a sequence, as a sum."""

import tensorflow as tf


def sequence_loss(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
    """Return the weighted cross-entropy in nats, summed over all positions: scalar float32.

    logits [..., vocabulary], targets [...] int32, weights [...] float32, 0 at padding. label_smoothing: the part of the
    target's probability that is spread evenly over the vocabulary (Szegedy et al., 2016).

    Unlike tf.contrib.seq2seq.sequence_loss, this does not divide by the weights: the mean over several towers is the
    sum of their losses over the sum of their weights. A mean of means would weight a tower with short targets too much.
    """
    logits = tf.cast(logits, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    if label_smoothing:
        # The cross-entropy of a label is log sum exp(logits) minus the label's logit; the first term is common to all.
        of_targets = tf.gather(logits, targets, batch_dims=targets.shape.rank)
        losses += label_smoothing * (of_targets - tf.reduce_mean(logits, -1))
    return tf.reduce_sum(losses * weights)
