"""The weights that a new model begins with."""

from collections.abc import Sequence

import keras
import numpy as np
import numpy.typing as npt

from chatbot.config.model import ModelSettings
from chatbot.corpus.ngrams import Ngrams
from chatbot.corpus.pair_ids import EncodedPairs
from chatbot.corpus.vocabulary import ASK, BOS, EOS, PAD
from chatbot.corpus.word_vectors import WordVectors
from chatbot.model.loss import LossSize
from chatbot.model.seq2seq import Seq2Seq


def built_model(
    settings: ModelSettings,
    vocabulary_size: int,
    seed: int,
    precision: str = "float32",
    loss_size: LossSize = LossSize(),  # noqa: B008  # immutable
    spellings: npt.NDArray[np.int64] | None = None,
    ngrams: Ngrams | None = None,
    label_smoothing: float = 0.0,
) -> Seq2Seq:
    """Return a new model, whose weights are a function of the seed.

    Kernels have the variance of Glorot and Bengio (2010), 2 / (inputs + outputs). If one consists of several products,
    and has their number as the attribute `parts`, the outputs are those of one of them.
    """
    model = Seq2Seq(settings, vocabulary_size, precision, loss_size, spellings, ngrams, label_smoothing)
    for number, weight in enumerate(model.trainable_variables):
        weight_seed = seed + 1000 * number
        # The layers have set the others: biases to zeros, and ones for an LSTM's forget gate; gains to ones.
        if weight.name in ("embeddings", "projection"):
            weight.assign(keras.initializers.RandomNormal(stddev=0.05, seed=weight_seed)(weight.shape))
        elif weight.name == "kernel":
            limit = (6 / (weight.shape[0] + weight.shape[1] / getattr(weight, "parts", 1))) ** 0.5
            weight.assign(keras.initializers.RandomUniform(-limit, limit, seed=weight_seed)(weight.shape))
        elif weight.name == "recurrent_kernel":
            weight.assign(keras.initializers.Orthogonal(seed=weight_seed)(weight.shape))
    return model


def start_from_vectors(model: Seq2Seq, vectors: WordVectors) -> None:
    """Set the embeddings of tokens to pretrained word vectors."""
    embeddings = model.embedding.embeddings.numpy()  # [vocabulary, embedding]
    embeddings[vectors.ids] = vectors.rows
    model.embedding.embeddings.assign(embeddings)


def start_from_frequencies(model: Seq2Seq, shards: Sequence[EncodedPairs]) -> None:
    """Set the bias so that the untrained model predicts each token with its frequency in the replies.

    Otherwise the first epoch would have to learn the frequencies. Tokens that never occur, such as most bytes, count as
    a tenth of an occurrence.
    """
    smoothed = np.full(model.bias.shape[0], 0.1)
    for pairs in shards:
        smoothed += np.bincount(pairs.targets.joined(), minlength=len(smoothed))
        smoothed[EOS] += len(pairs)
    smoothed[[PAD, BOS, ASK]] = 1e-6
    model.bias.assign(np.log(smoothed / smoothed.sum()))
