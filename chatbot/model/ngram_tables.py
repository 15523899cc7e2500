"""The distribution of the next token by the n-grams of the training corpus, and its mixture with a model's.

Neural models and n-grams make different mistakes: n-grams remember rare words (Li et al., 2022, arXiv 2210.14431).
"""

import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.corpus.ngrams import MULTIPLIER, Ids, Ngrams, Order
from chatbot.corpus.vocabulary import ASK, BOS
from chatbot.model.operations import on_gpu


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
        """Return the history with the ids of one more step, [positions, order - 1]. ids: [positions], integers."""
        ids = tf.cast(ids, tf.int64)
        begun = tf.where(ids == ASK, np.int64(BOS), ids)  # the n-grams of both directions are the same
        return tf.concat([history[:, 1:], begun[:, None]], axis=1)

    def probabilities(self, histories: tf.Tensor) -> tf.Tensor:
        """Return the probability of each next token by n-grams, [positions, vocabulary] float32.

        histories: [positions, order - 1] int64, the ids before it, BOS before the first.
        """
        if on_gpu():  # whose host would wait for the number of n-grams of each context
            return self.probabilities_of(histories, np.arange(len(self._ngrams.unigrams))[None])
        result = tf.tile(tf.convert_to_tensor(self._ngrams.unigrams)[None], [tf.shape(histories)[0], 1])
        for length, order in enumerate(self._ngrams.orders, 2):
            row, found = _context(order, histories[:, histories.shape[1] - length + 1 :])
            first, last = tf.gather(order.starts, row), tf.gather(order.starts, row + 1)
            grams = tf.ragged.range(first, tf.where(found, last, first))  # [positions, (n-grams)]
            indices = tf.stack([grams.value_rowids(), tf.gather(order.ids, grams.values)], axis=1)
            result *= tf.where(found, tf.gather(order.masses, row), 1.0)[:, None]
            result = tf.tensor_scatter_nd_add(result, indices, tf.gather(order.probabilities, grams.values))
        return result

    def probabilities_of(self, histories: tf.Tensor, ids: Any) -> tf.Tensor:
        """Return the probability of some next tokens by n-grams, [positions, number] float32.

        histories: as for `probabilities`. ids: [positions, number] int64, or [1, number] for all positions.
        """
        result = tf.gather(self._ngrams.unigrams, ids)
        for length, (order, numbers) in enumerate(zip(self._ngrams.orders, self._numbers, strict=True), 2):
            row, found = _context(order, histories[:, histories.shape[1] - length + 1 :])
            number = row[:, None] * len(self._ngrams.unigrams) + ids  # [positions, number]
            gram = tf.searchsorted(numbers, tf.reshape(number, [-1]), out_type=tf.int64)
            gram = tf.reshape(tf.minimum(gram, np.int64(len(numbers) - 1)), tf.shape(number))
            is_known = found[:, None] & (tf.gather(numbers, gram) == number)
            result *= tf.where(found, tf.gather(order.masses, row), 1.0)[:, None]
            result += tf.where(is_known, tf.gather(order.probabilities, gram), 0.0)
        return result

    @functools.cached_property
    def _numbers(self) -> list[Ids]:
        """For each order a number of each n-gram, of its context and its last id: sorted, as the n-grams are."""
        return [
            np.repeat(np.arange(len(order.contexts)), np.diff(order.starts)) * len(self._ngrams.unigrams) + order.ids
            for order in self._ngrams.orders
        ]

    def mixed(self, log_probabilities: tf.Tensor, probabilities: tf.Tensor) -> tf.Tensor:
        """Return the log-probabilities of the mixture, in the shape of both.

        log_probabilities: the model's. probabilities: by n-grams.
        """
        by_model = log_probabilities + math.log(1 - self._weight)
        by_ngrams = tf.math.log(probabilities) + math.log(self._weight)
        return tf.maximum(by_model, by_ngrams) + tf.math.log1p(tf.exp(-tf.abs(by_model - by_ngrams)))


def _context(order: Order, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the place among the contexts of an order of [positions, ids], and whether it is there: [positions]."""
    number = _context_number(ids)
    contexts = tf.convert_to_tensor(order.contexts)
    row = tf.searchsorted(contexts, number, out_type=tf.int64)
    row = tf.minimum(row, np.int64(order.contexts.shape[0] - 1))
    return row, tf.gather(contexts, row) == number


def _context_number(ids: tf.Tensor) -> tf.Tensor:
    """Return `context_numbers` of [positions, ids], [positions]."""
    number = tf.zeros_like(ids[:, 0])
    for column in range(ids.shape[1]):  # a GPU has no tf.unstack of int64
        number = number * MULTIPLIER + ids[:, column] + 1
    return number
