"""Mixes n-gram probabilities with the next-token probabilities of a neural model.

N-grams improve neural models because they remember rare words (Li et al., 2022, arXiv 2210.14431). All functions accept
NumPy arrays and TensorFlow tensors.
"""

import functools
import math
from typing import Any

import numpy as np

from chatbot.corpus.vocabulary import ASK, BOS
from chatbot.decoding.array_functions import Array, Ids, functions_of
from chatbot.decoding.ngrams import Ngrams, Order, context_numbers


class NgramMixture:
    """A weighted mixture of a model's distribution and an n-gram distribution.

    To share the n-grams between graphs, pass tensors or variables. Each graph would get its own copy of NumPy arrays.

    Args:
        ngrams: The n-grams.
        weight: The weight of the n-gram distribution, between 0 and 1.
    """

    def __init__(self, ngrams: Ngrams, weight: float) -> None:
        self.ngrams = ngrams
        self.order = ngrams.order
        self.weight = weight
        self._log_model, self._log_ngrams = np.float32(math.log(1 - weight)), np.float32(math.log(weight))

    def begins(self, rows: Array) -> Array:
        """Return the history before the first token, which consists of BOS, for each row of an array.

        The result has shape [rows, order - 1] and dtype int64.
        """
        return functions_of(rows).column(rows, BOS) + np.zeros(self.order - 1, np.int64)

    def next_history(self, history: Array, ids: Array) -> Array:
        """Append an id to each history [positions, order - 1], and remove the oldest id."""
        functions = functions_of(ids)
        ids = functions.int64(ids)
        ids = functions.where(ids == ASK, np.int64(BOS), ids)  # Replies and questions use the same n-grams.
        return functions.concatenate([history[:, 1:], ids[:, None]], 1)

    def probabilities(self, histories: Array) -> Array:
        """Return the n-gram probability of each token of the vocabulary, with shape [positions, vocabulary].

        Args:
            histories: The previous ids, preceded by BOS, with shape [positions, order - 1] and dtype int64.
        """
        functions = functions_of(histories)
        result = functions.repeated(functions.array(self.ngrams.unigrams)[None], functions.shape(histories)[0])
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
        """Return the n-gram probability of the given next tokens, with shape [positions, number].

        Args:
            histories: The previous ids, preceded by BOS, with shape [positions, order - 1] and dtype int64.
            ids: The next tokens, with shape [positions, number], or [1, number] for the same tokens at all positions.
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
        """The sorted keys of the n-grams of each order. A key is context index * vocabulary size + last id."""
        return [
            np.repeat(np.arange(len(order.contexts)), np.diff(order.starts)) * len(self.ngrams.unigrams) + order.ids
            for order in self.ngrams.orders
        ]

    def mixed(self, log_probabilities: Array, probabilities: Array) -> Array:
        """Return the log-probabilities of the mixture.

        Args:
            log_probabilities: The log-probabilities of the model.
            probabilities: The n-gram probabilities, with the same shape.
        """
        functions = functions_of(log_probabilities)
        by_model = log_probabilities + self._log_model
        by_ngrams = functions.log(probabilities) + self._log_ngrams
        return functions.maximum(by_model, by_ngrams) + functions.log1p(functions.exp(-abs(by_model - by_ngrams)))


def _context(order: Order, ids: Array) -> tuple[Array, Array]:
    """Look up contexts in the n-grams of an order. Return their indices, and whether they were found, [positions]."""
    functions = functions_of(ids)
    contexts = functions.array(order.contexts)
    number = context_numbers(ids)
    row = functions.minimum(functions.searchsorted(contexts, number), np.int64(contexts.shape[0] - 1))
    return row, functions.rows(contexts, row) == number
