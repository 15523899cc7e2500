"""How usual the characters of replies are, by the n-grams of a corpus that the measured model did not make."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from chatbot.corpus.dataset import Corpus
from chatbot.corpus.pair_ids import Ragged
from chatbot.decoding.ngram_mixture import NgramMixture
from chatbot.decoding.ngrams import Ngrams, ngrams_of, positions_of

# The length of the longest n-grams, in characters.
ORDER = 4


class Fluency:
    """Measures texts by the n-grams of the replies of a corpus.

    corpus: encoded in a vocabulary of characters. tokens: from a text to the tokens of this corpus, its characters.
    """

    def __init__(self, corpus: Corpus, tokens: Callable[[str], list[str]]) -> None:
        self._vocabulary = corpus.vocabulary
        self._tokens = tokens
        self._ngrams = ngrams_of((part.targets for part in corpus.shards), len(corpus.vocabulary), ORDER)

    def __call__(self, texts: Sequence[str]) -> float | None:
        """Return the nats per character of texts, ends included and spaces not counted; None without a character."""
        characters = sum(len(text.replace(" ", "")) for text in texts)
        ids = Ragged.from_rows([self._vocabulary.ids(self._tokens(text)) for text in texts])
        return -float(np.log(probabilities(self._ngrams, ids)).sum()) / characters if characters else None


def probabilities(ngrams: Ngrams, sequences: Ragged) -> npt.NDArray[np.float64]:
    """Return the probability of each id of some sequences, and of EOS after each sequence, by n-grams: [positions]."""
    histories, ids = positions_of(sequences, ngrams.order)
    mixture = NgramMixture(ngrams, weight=0.5)  # the weight is for a mixture with a model's probabilities
    return np.asarray(mixture.probabilities_of(histories, ids[:, None])[:, 0], np.float64)
