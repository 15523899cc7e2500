"""The weights of target tokens by their frequency: the inverse token frequency loss (Nakamura et al., 2019)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.vocabulary import EOS


def target_counts(shards: Sequence[EncodedPairs], vocabulary_size: int) -> npt.NDArray[np.float64]:
    """Return the number of occurrences of each token in the targets, EOS included: [vocabulary]."""
    counts = np.zeros(vocabulary_size)
    for pairs in shards:
        counts += np.bincount(pairs.targets.joined(), minlength=vocabulary_size)
        counts[EOS] += len(pairs)
    return counts


def inverse_frequency_weights(counts: npt.NDArray[np.float64], exponent: float) -> npt.NDArray[np.float32]:
    """Return the weight of each token, (1 / frequency)^exponent, scaled to a mean of 1 over all occurrences.

    counts: [vocabulary], at least one above 0. The result is [vocabulary]; tokens that do not occur weigh 0.
    """
    weights = np.zeros(len(counts))
    weights[counts > 0] = counts[counts > 0] ** -exponent
    return (weights * (counts.sum() / (weights @ counts))).astype(np.float32)
