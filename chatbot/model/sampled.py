"""A softmax over the target and a few drawn tokens, for vocabularies that make the whole one slow."""

import math

import tensorflow as tf

from chatbot.model.product import product

# Of the seeds that a step folds in; dropouts have 100 to 400.
NUMBER = 500


def sampled_loss(
    attended: tf.Tensor,
    embeddings: tf.Tensor,
    bias: tf.Tensor,
    targets: tf.Tensor,
    weights: tf.Tensor,
    samples: int,
    seed: tf.Tensor,
    dtype: str = "float32",
) -> tf.Tensor:
    """The weighted cross-entropy, summed, against drawn tokens: importance sampling (Bengio and Senécal, 2008). Scalar.

    attended [tokens, units], embeddings [vocabulary, units], bias [vocabulary], targets [tokens] int32,
    weights [tokens]. samples: tokens drawn, the same for all positions, with replacement. seed [2] int32.
    """
    vocabulary = embeddings.shape[0]
    drawn = tf.random.stateless_uniform([samples], tf.random.experimental.stateless_fold_in(seed, NUMBER))
    # By Zipf's law, as the vocabulary is in the order of frequency: P(k) = log((k + 2) / (k + 1)) / log(V + 1).
    ids = tf.cast(tf.exp(drawn * math.log(vocabulary + 1)), tf.int32) - 1
    ids = tf.clip_by_value(ids, 0, vocabulary - 1)

    def expected(ids: tf.Tensor) -> tf.Tensor:
        """How often each of these is drawn on average."""
        k = tf.cast(ids, tf.float32)
        return samples * tf.math.log((k + 2) / (k + 1)) / math.log(vocabulary + 1)

    picked = tf.gather(embeddings, targets)  # [tokens, units]
    of_targets = tf.reduce_sum(attended * picked, -1) + tf.gather(bias, targets)  # [tokens]
    others = product(attended, tf.gather(embeddings, ids), dtype, transpose_b=True)  # [tokens, samples]
    others += tf.gather(bias, ids) - tf.math.log(expected(ids))
    # The target is there once, whether it was drawn or not; the rest then sums to the whole's sum on average.
    others = tf.where(targets[:, None] == ids, others.dtype.min, others)
    losses = tf.reduce_logsumexp(tf.concat([of_targets[:, None], others], -1), -1) - of_targets
    return tf.reduce_sum(losses * weights)
