"""A softmax over the target and sampled tokens, for large vocabularies."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.model.gpu import size_on_device
from chatbot.model.matmul import matmul


def draw_samples(samples: int, vocabulary: int, seed: Sequence[int]) -> npt.NDArray[np.int64]:
    """Draw ids by Zipf's law, with replacement, [samples]. The vocabulary is sorted by frequency.

    P(k) = log((k + 2) / (k + 1)) / log(vocabulary + 1).
    """
    drawn = np.random.default_rng(list(seed)).random(samples)
    ids = np.exp(drawn * math.log(vocabulary + 1)).astype(np.int64) - 1
    return np.clip(ids, 0, vocabulary - 1)


def sampled_loss(
    attended: tf.Tensor,
    target_embeddings: tf.Tensor,
    sample_embeddings: tf.Tensor,
    bias: tf.Tensor,
    targets: tf.Tensor,
    samples: tf.Tensor,
    weights: tf.Tensor,
    precision: str = "float32",
) -> tf.Tensor:
    """Return the weighted cross-entropy in nats, summed, with importance sampling (Bengio and Senécal, 2008): a scalar.

    attended and target_embeddings [tokens, units], sample_embeddings [samples, units], bias [vocabulary],
    targets [tokens] int64, samples [samples] int64, from `draw_samples`, the same for all positions, weights [tokens].
    """
    vocabulary, number = bias.shape[0], tf.cast(size_on_device(samples), tf.float32)

    def expected_count(ids: tf.Tensor) -> tf.Tensor:
        """Return the expected number of times that each id is drawn."""
        k = tf.cast(ids, tf.float32)
        return number * tf.math.log((k + 2) / (k + 1)) / math.log(vocabulary + 1)

    # Without keepdims, the host of a GPU would wait for a shape in the gradient of each sum.
    products = tf.reduce_sum(attended * target_embeddings, -1, keepdims=True)  # [tokens, 1]
    target_logits = products + tf.gather(bias, targets)[:, None]  # [tokens, 1]
    logits = matmul(attended, sample_embeddings, precision, transpose_b=True)  # [tokens, samples]
    logits += tf.gather(bias, samples) - tf.math.log(expected_count(samples))
    # Samples that equal the target are excluded, since the target is in the sum already. The expected sum over the
    # samples is then the sum over the rest of the vocabulary.
    logits = tf.where(targets[:, None] == samples, logits.dtype.min, logits)
    logits = tf.concat([target_logits, logits], -1)  # [tokens, 1 + samples]
    losses = tf.reduce_logsumexp(logits, -1, keepdims=True) - target_logits  # [tokens, 1]
    return tf.reduce_sum(tf.squeeze(losses, -1) * weights)
