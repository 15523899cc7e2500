"""The mixture of a model's distribution with that of n-grams, in NumPy: see `chatbot.model.ngram_tables`."""

import math

import numpy as np
import numpy.typing as npt

from chatbot.corpus.ngrams import MULTIPLIER, Ngrams
from chatbot.corpus.vocabulary import ASK, BOS

Floats = npt.NDArray[np.float32]
Histories = npt.NDArray[np.int64]  # [positions, order - 1], the ids before each position


class NgramMixture:
    """Mixes n-grams in. weight: their share, between 0 and 1."""

    def __init__(self, ngrams: Ngrams, weight: float) -> None:
        self._ngrams, self._weight = ngrams, np.float32(weight)
        self._log_model, self._log_ngrams = np.float32(math.log(1 - weight)), np.float32(math.log(weight))

    def begins(self, rows: int) -> Histories:
        """Return the history before the first token's input."""
        return np.full((rows, self._ngrams.order - 1), BOS, np.int64)

    def next_history(self, history: Histories, ids: npt.NDArray[np.int64]) -> Histories:
        """Return the history with the ids of one more step. ids: [positions]."""
        begun = np.where(ids == ASK, BOS, ids)  # the n-grams of both directions are the same
        return np.concatenate([history[:, 1:], begun[:, None].astype(np.int64)], axis=1)

    def probabilities(self, histories: Histories) -> Floats:
        """Return the probability of each next token by n-grams, [positions, vocabulary]."""
        result = np.tile(self._ngrams.unigrams, (len(histories), 1))
        for length, order in enumerate(self._ngrams.orders, 2):
            numbers = _context_numbers(histories[:, histories.shape[1] - length + 1 :])
            places = np.minimum(np.searchsorted(order.contexts, numbers), len(order.contexts) - 1)
            for position in np.flatnonzero(order.contexts[places] == numbers):
                place = places[position]
                grams = slice(order.starts[place], order.starts[place + 1])
                result[position] *= order.masses[place]
                result[position, order.ids[grams]] += order.probabilities[grams]
        return result

    def mixed(self, log_probabilities: Floats, histories: Histories) -> Floats:
        """Return the log-probabilities of the mixture, in the shape of those of the model."""
        by_model = log_probabilities + self._log_model
        by_ngrams = np.log(self.probabilities(histories)) + self._log_ngrams
        return np.maximum(by_model, by_ngrams) + np.log1p(np.exp(-np.abs(by_model - by_ngrams)))


def _context_numbers(ids: Histories) -> Histories:
    """Return the number of each context; products wrap around, as in 64-bit integers."""
    numbers = np.zeros(len(ids), np.int64)
    for column in ids.T:
        numbers = numbers * np.int64(MULTIPLIER) + column + 1
    return numbers
