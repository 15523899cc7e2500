"""The held-out likelihood of models that only count: n-grams of characters, and copies of the question's characters."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.tokenised import character_corpora
from chatbot.corpus.dataset import Corpus
from chatbot.corpus.ngrams import Ngrams, ngrams_of, positions_of
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.evaluation.fluency import probabilities

ORDERS = (2, 3, 4)
# The share of the copy in its mixture with n-grams.
COPY_WEIGHT = 0.09

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


def measure_count_models(training: Path, held_out: Path, cache: Path) -> dict[str, float]:
    """Return the nats per character of whole held-out replies, end symbol included, by model.

    Tokens are characters, rare ones in bytes, and the pairs are those that train.py reads. Smoothing: interpolated
    modified Kneser-Ney.
    """
    corpus, validation = character_corpora(training, held_out, cache)
    pairs, size, nats = [*validation.shards], len(corpus.vocabulary), {}
    for order in ORDERS:
        replies = ngrams_of((part.targets for part in corpus.shards), size, order)
        nats[f"{order}-gram of replies"] = nats_per_character(replies, pairs)
    for order in ORDERS:
        both_sides = ngrams_of(_both_sides(corpus), size, order)
        nats[f"{order}-gram of both sides"] = nats_per_character(both_sides, pairs)
    nats[f"{order}-gram of both sides, and copy"] = nats_per_character(both_sides, pairs, COPY_WEIGHT)
    return nats


def _both_sides(corpus: Corpus) -> Iterator[Ragged]:
    return (side for part in corpus.shards for side in (part.targets, part.sources))


def nats_per_character(ngrams: Ngrams, pairs: Iterable[EncodedPairs], copy_weight: float = 0.0) -> float:
    """Return the negative log-likelihood of the replies over their characters.

    copy_weight: the share of a copy of one of the question's ids, each as probable as the others.
    """
    nats, characters = 0.0, 0
    for part in pairs:
        of_ids = probabilities(ngrams, part.targets)
        if copy_weight:
            of_ids = (1 - copy_weight) * of_ids + copy_weight * copy_probabilities(part)
        nats -= float(np.log(of_ids).sum())
        characters += int(part.characters.sum())
    return nats / characters


def copy_probabilities(pairs: EncodedPairs) -> Floats:
    """Return the share of each id of the replies, and of EOS after them, in the ids of its question: [positions]."""
    size = 1 + int(max(pairs.sources.joined().max(), pairs.targets.joined().max()))
    keys, counts = np.unique(_rows(pairs.sources.lengths) * size + pairs.sources.joined(), return_counts=True)
    _, ids = positions_of(pairs.targets, 2)
    rows = _rows(pairs.targets.lengths + 1)
    wanted = rows * size + ids
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, counts[places], 0) / pairs.sources.lengths[rows]


def _rows(lengths: Ids) -> Ids:
    """Return the row of each element of ragged rows."""
    return np.repeat(np.arange(len(lengths)), lengths)
