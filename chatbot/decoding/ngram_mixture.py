"""The distribution of the next token by the n-grams of the training corpus, and its mixture with a model's.

Neural models and n-grams make different mistakes: n-grams remember rare words (Li et al., 2022, arXiv 2210.14431).
Arrays are of NumPy or TensorFlow.
"""

import functools
import math
from typing import Any

import numpy as np

from chatbot.corpus.vocabulary import ASK, BOS
from chatbot.decoding.array_functions import Array, functions_of
from chatbot.decoding.ngrams import MULTIPLIER, Ids, Ngrams, Order


class NgramMixture:
    """Mixes n-grams into the distributions of a model. weight: their share, between 0 and 1.

    In a graph, arrays of NumPy become constants; tensors and variables in their place are shared by all graphs.
    """

    def __init__(self, ngrams: Ngrams, weight: float) -> None:
        self.ngrams = ngrams
        self.order = ngrams.order
        self.weight = weight
        self._log_model, self._log_ngrams = np.float32(math.log(1 - weight)), np.float32(math.log(weight))

    def begins(self, rows: Array) -> Array:
        """Return the history before the first token's input, [rows, order - 1] int64. rows: an array, [rows, ...]."""
        return functions_of(rows).column(rows, BOS) + np.zeros(self.order - 1, np.int64)

    def next_history(self, history: Array, ids: Array) -> Array:
        """Return the history with the ids of one more step, [positions, order - 1]. ids: [positions], integers."""
        functions = functions_of(ids)
        ids = functions.int64(ids)
        begun = functions.where(ids == ASK, np.int64(BOS), ids)  # the n-grams of both directions are the same
        return functions.concatenate([history[:, 1:], begun[:, None]], 1)

    def probabilities(self, histories: Array) -> Array:
        """Return the probability of each next token by n-grams, [positions, vocabulary] float32.

        histories: [positions, order - 1] int64, the ids before it, BOS before the first.
        """
        functions = functions_of(histories)
        result = functions.repeated(functions.array(self.ngrams.unigrams)[None], functions.length(histories))
        for length, order in enumerate(self.ngrams.orders, 2):
            row, is_known = _context(order, histories[:, histories.shape[1] - length + 1 :])
            first = functions.rows(order.starts, row)
            last = functions.rows(order.starts, row + 1)
            positions, grams = functions.ranges(first, functions.where(is_known, last, first))
            result = result * functions.where(is_known, functions.rows(order.masses, row), np.float32(1))[:, None]
            ids = functions.rows(order.ids, grams)
            added = functions.rows(order.probabilities, grams)
            result = functions.add_at(result, positions, ids, added)
        return result

    def probabilities_of(self, histories: Array, ids: Any) -> Array:
        """Return the probability of some next tokens by n-grams, [positions, number] float32.

        histories: as for `probabilities`. ids: [positions, number] int64, or [1, number] for all positions.
        """
        functions = functions_of(histories)
        vocabulary = len(self.ngrams.unigrams)
        result = functions.rows(self.ngrams.unigrams, ids)
        for length, (order, numbers) in enumerate(zip(self.ngrams.orders, self._numbers, strict=True), 2):
            row, is_known = _context(order, histories[:, histories.shape[1] - length + 1 :])
            number = row[:, None] * vocabulary + ids  # [positions, number]
            gram = functions.searchsorted(numbers, functions.reshape(number, (-1,)))
            gram = functions.minimum(functions.reshape(gram, (-1, number.shape[1])), np.int64(len(numbers) - 1))
            is_gram = is_known[:, None] & (functions.rows(numbers, gram) == number)
            added = functions.where(is_gram, functions.rows(order.probabilities, gram), np.float32(0))
            mass = functions.where(is_known, functions.rows(order.masses, row), np.float32(1))[:, None]
            result = result * mass + added
        return result

    @functools.cached_property
    def _numbers(self) -> list[Ids]:
        """For each order a number of each n-gram, of its context and its last id: sorted, as the n-grams are."""
        return [
            np.repeat(np.arange(len(order.contexts)), np.diff(order.starts)) * len(self.ngrams.unigrams) + order.ids
            for order in self.ngrams.orders
        ]

    def mixed(self, log_probabilities: Array, probabilities: Array) -> Array:
        """Return the log-probabilities of the mixture, in the shape of both.

        log_probabilities: the model's. probabilities: by n-grams.
        """
        functions = functions_of(log_probabilities)
        by_model = log_probabilities + self._log_model
        by_ngrams = functions.log(probabilities) + self._log_ngrams
        return functions.maximum(by_model, by_ngrams) + functions.log1p(functions.exp(-abs(by_model - by_ngrams)))


def _context(order: Order, ids: Array) -> tuple[Array, Array]:
    """Return the place among the contexts of an order of [positions, ids], and whether it is there: [positions]."""
    functions = functions_of(ids)
    contexts = functions_of(ids).array(order.contexts)
    number = functions.zeros_like(ids[:, 0])  # as `context_numbers`
    for column in range(ids.shape[1]):  # a GPU has no tf.unstack of int64
        number = number * MULTIPLIER + ids[:, column] + 1
    row = functions.minimum(functions.searchsorted(contexts, number), np.int64(contexts.shape[0] - 1))
    return row, functions.rows(contexts, row) == number
