"""The weights that a new model begins with."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.attempts.opening import other_attempt
from chatbot.attempts.trained import Trained, load_trained, weights_of
from chatbot.config.model import ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.pair_ids import EncodedPairs
from chatbot.corpus.vocabulary import ASK, BOS, EOS, PAD, Vocabulary
from chatbot.decoding.ngrams import Ngrams
from chatbot.model.copying import spelling_table
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.data import Data
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.team import Team
from chatbot.training.memory import loss_size

if TYPE_CHECKING:
    from chatbot.pretrained.word_vectors import WordVectors

Array = npt.NDArray[np.float32]


def new_model(settings: Settings, data: Data, towers: Sequence[Tower], team: Team, ngrams: Ngrams | None) -> Seq2Seq:
    """Return a model with weights drawn at random, on the device of the first tower, or on those of its parts."""
    learning = settings.learning
    with tf.device(towers[0].device):
        return built_model(
            settings.model,
            len(data.vocabulary),
            learning.seed,
            learning.precision,
            loss_size=loss_size(settings, towers, team.machines),
            spellings=spelling_table(data.vocabulary.spellings()),
            ngrams=ngrams,
            label_smoothing=learning.label_smoothing,
            part_devices=towers[0].parts or (),
        )


def set_initial_weights(model: Seq2Seq, settings: Settings, data: Data) -> None:
    """Set the bias to log frequencies of tokens, embeddings to --word-vectors, all weights to --init-from."""
    if settings.run.init_from is not None and _are_pretrained(model, settings.run.init_from):
        return
    start_from_frequencies(model, data.training)
    if settings.model.word_vectors is not None:
        from chatbot.pretrained.word_vectors import read_word_vectors

        vectors = Path(settings.model.word_vectors)
        start_from_vectors(model, read_word_vectors(vectors, data.vocabulary, settings.model.embedding_size))
    if settings.run.init_from is not None:
        with tf.device("/CPU:0"):
            start_from_trained(model, data.vocabulary, load_trained(other_attempt(settings)))


def _are_pretrained(model: Seq2Seq, name: str) -> bool:
    """Read the weights of a pretrained model, and return whether it is one."""
    from chatbot.pretrained.folder import pretrained_model
    from chatbot.pretrained.tokens import piece_vocabulary
    from chatbot.pretrained.weights import read_weights

    if (there := pretrained_model(name)) is None:
        return False
    with tf.device("/CPU:0"):
        read_weights(model, there, piece_vocabulary(there.tokenizer(), there.config)[1])
    return True


def built_model(
    settings: ModelSettings, vocabulary_size: int, seed: int, precision: str = "float32", **options: Any
) -> Seq2Seq:
    """Return a new model, whose weights are a function of the seed. options: of `Seq2Seq`.

    Kernels have the variance of Glorot and Bengio (2010), 2 / (inputs + outputs). If one consists of several products,
    and has their number as the attribute `parts`, the outputs are those of one of them.
    """
    model = Seq2Seq(settings, vocabulary_size, precision, **options)
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


def start_from_vectors(model: Seq2Seq, vectors: "WordVectors") -> None:
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


def start_from_trained(model: Seq2Seq, vocabulary: Vocabulary, other: Trained) -> None:
    """Set all weights to those of a trained model of the same sizes, whose vocabulary may be another."""
    recurrent = {id(v.value) for layer in (model.encoder, model.decoder) for v in layer.trainable_variables}
    sizes = len(vocabulary), len(other.vocabulary)
    for weight, old in zip(weights_of(model), weights_of(other.model), strict=True):
        value = old.numpy()
        of_tokens = [axis for axis, both in enumerate(zip(weight.shape, old.shape, strict=True)) if both == sizes]
        if of_tokens and id(weight) not in recurrent:
            axis = of_tokens[0]
            drawn, value = (np.moveaxis(array, axis, 0) for array in (weight.numpy(), value))
            value = np.moveaxis(rows_by_token(drawn, vocabulary, value, other.vocabulary), 0, axis)
        weight.assign(value)


def rows_by_token(drawn: Array, vocabulary: Vocabulary, other: Array, old: Vocabulary) -> Array:
    """Return the rows of the tokens of a vocabulary, taken from those of an old one.

    drawn: at random, [vocabulary, ...]. other: [old, ...]. A new token starts with the mean of the rows of its
    characters or bytes; its bias, and a byte, stay as they are.
    """
    ids = {token: i for i, token in enumerate(old.tokens)}
    rows = drawn.copy()
    for i, token in enumerate(vocabulary.tokens):
        if token in ids:
            rows[i] = other[ids[token]]
        elif i < vocabulary.first_byte and drawn.ndim > 1:
            rows[i] = other[old.ids([token])].mean(axis=0)
    return rows
