"""The distribution of the next token by the n-grams of the training corpus, and its mixture with a model's.

Neural models and n-grams make different mistakes: n-grams remember rare words (Li et al., 2022, arXiv 2210.14431).
"""

import math

import tensorflow as tf

from chatbot.corpus.encoding.ngrams import MULTIPLIER, Ngrams
from chatbot.corpus.encoding.vocabulary import ASK, BOS


class NgramTables:
    """N-grams as tensors. weight: their share in the mixture, between 0 and 1.

    Arrays become constants of each graph; an export gives variables in their place, which its graphs share.
    """

    def __init__(self, ngrams: Ngrams, weight: float) -> None:
        self._ngrams, self._weight, self.order = ngrams, weight, ngrams.order

    def begins(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the history before the first token's input, [rows, order - 1] int64."""
        return tf.fill([rows, self._ngrams.order - 1], tf.constant(BOS, tf.int64))

    def next_history(self, history: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Return the history with the ids of one more step, [positions, order - 1]. ids: [positions] int32."""
        begun = tf.where(ids == ASK, BOS, ids)  # the n-grams of both directions are the same
        return tf.concat([history[:, 1:], tf.cast(begun, tf.int64)[:, None]], axis=1)

    def probabilities(self, histories: tf.Tensor) -> tf.Tensor:
        """Return the probability of each next token by n-grams, [positions, vocabulary] float32.

        histories: [positions, order - 1] int64, the ids before it, BOS before the first.
        """
        result = tf.tile(tf.convert_to_tensor(self._ngrams.unigrams)[None], [tf.shape(histories)[0], 1])
        for length, order in enumerate(self._ngrams.orders, 2):
            number = _context_number(histories[:, histories.shape[1] - length + 1 :])
            contexts = tf.convert_to_tensor(order.contexts)
            row = tf.minimum(tf.searchsorted(contexts, number), order.contexts.shape[0] - 1)  # [positions]
            found = tf.gather(contexts, row) == number
            first, last = tf.gather(order.starts, row), tf.gather(order.starts, row + 1)
            grams = tf.ragged.range(first, tf.where(found, last, first))  # [positions, (n-grams)]
            indices = tf.stack([grams.value_rowids(), tf.gather(order.ids, grams.values)], axis=1)
            result *= tf.where(found, tf.gather(order.masses, row), 1.0)[:, None]
            result = tf.tensor_scatter_nd_add(result, indices, tf.gather(order.probabilities, grams.values))
        return result

    def mixed(self, log_probabilities: tf.Tensor, probabilities: tf.Tensor) -> tf.Tensor:
        """Return the log-probabilities of the mixture, in the shape of both.

        log_probabilities: the model's. probabilities: by n-grams.
        """
        by_model = log_probabilities + math.log(1 - self._weight)
        by_ngrams = tf.math.log(probabilities) + math.log(self._weight)
        return tf.maximum(by_model, by_ngrams) + tf.math.log1p(tf.exp(-tf.abs(by_model - by_ngrams)))


def _context_number(ids: tf.Tensor) -> tf.Tensor:
    """Return `context_numbers` of [positions, ids], [positions]."""
    number = tf.zeros_like(ids[:, 0])
    for column in tf.unstack(ids, axis=1):
        number = number * MULTIPLIER + column + 1
    return number
