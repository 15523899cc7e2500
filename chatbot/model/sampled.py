"""A softmax over the target and sampled tokens, for large vocabularies."""

import math

import tensorflow as tf

from chatbot.model.matmul import matmul

# Folded into a step's seed, like the numbers of dropouts, which are 100 to 400.
NUMBER = 500


def sampled_loss(
    attended: tf.Tensor,
    embeddings: tf.Tensor,
    bias: tf.Tensor,
    targets: tf.Tensor,
    weights: tf.Tensor,
    samples: int,
    seed: tf.Tensor,
    precision: str = "float32",
) -> tf.Tensor:
    """Return the weighted cross-entropy in nats, summed, with importance sampling (Bengio and Senécal, 2008): a scalar.

    attended [tokens, units], embeddings [vocabulary, units], bias [vocabulary], targets [tokens] int32,
    weights [tokens]. samples: the number of tokens drawn, with replacement, once for all positions. seed: [2] int32.
    """
    vocabulary = embeddings.shape[0]
    uniform = tf.random.stateless_uniform([samples], tf.random.experimental.stateless_fold_in(seed, NUMBER))
    # The vocabulary is sorted by frequency, so ids are drawn by Zipf's law:
    # P(k) = log((k + 2) / (k + 1)) / log(vocabulary + 1).
    ids = tf.cast(tf.exp(uniform * math.log(vocabulary + 1)), tf.int32) - 1  # [samples]
    ids = tf.clip_by_value(ids, 0, vocabulary - 1)

    def expected_count(ids: tf.Tensor) -> tf.Tensor:
        """Return the expected number of times that each id is drawn."""
        k = tf.cast(ids, tf.float32)
        return samples * tf.math.log((k + 2) / (k + 1)) / math.log(vocabulary + 1)

    target_embeddings = tf.gather(embeddings, targets)  # [tokens, units]
    target_logits = tf.reduce_sum(attended * target_embeddings, -1) + tf.gather(bias, targets)  # [tokens]
    logits = matmul(attended, tf.gather(embeddings, ids), precision, transpose_b=True)  # [tokens, samples]
    logits += tf.gather(bias, ids) - tf.math.log(expected_count(ids))
    # Samples that equal the target are excluded, since the target is in the sum already. The expected sum over the
    # samples is then the sum over the rest of the vocabulary.
    logits = tf.where(targets[:, None] == ids, logits.dtype.min, logits)
    losses = tf.reduce_logsumexp(tf.concat([target_logits[:, None], logits], -1), -1) - target_logits
    return tf.reduce_sum(losses * weights)
