"""Creation of new models and their initial weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.attempts.opening import init_from_directory
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

Array = npt.NDArray[np.float32]


def new_model(settings: Settings, data: Data, towers: Sequence[Tower], team: Team, ngrams: Ngrams | None) -> Seq2Seq:
    """Create a model with random weights on the first tower's device, or on several devices with --model-parallel.

    Args:
        settings: The settings of the run.
        data: The pairs and their vocabulary.
        towers: The towers of this machine.
        team: The machines of the run.
        ngrams: The n-grams of the replies with --ngrams, else None.
    """
    learning = settings.learning
    with tf.device(towers[0].device):
        return build_model(
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
    """Set the initial weights that are not random.

    The output bias is set from token frequencies, the embeddings from --word-vectors, and all weights from --init-from.
    """
    if settings.run.init_from is not None and _load_pretrained(model, settings.run.init_from):
        return
    start_from_frequencies(model, data.training)
    if settings.model.word_vectors is not None:
        from chatbot.pretrained.word_vectors import read_word_vectors

        path = Path(settings.model.word_vectors)
        vectors = read_word_vectors(path, data.vocabulary, settings.model.embedding_size)
        embeddings = model.embedding.embeddings.numpy()  # [vocabulary, embedding]
        embeddings[vectors.ids] = vectors.rows
        model.embedding.embeddings.assign(embeddings)
    if settings.run.init_from is not None:
        with tf.device("/CPU:0"):
            start_from_trained(model, data.vocabulary, load_trained(init_from_directory(settings)))


def _load_pretrained(model: Seq2Seq, name: str) -> bool:
    """Load the weights of a pretrained model. Returns False if there is no pretrained model with this name."""
    from chatbot.pretrained.folder import pretrained_model
    from chatbot.pretrained.tokens import piece_vocabulary
    from chatbot.pretrained.weights import read_weights

    if (pretrained := pretrained_model(name)) is None:
        return False
    with tf.device("/CPU:0"):
        read_weights(model, pretrained, piece_vocabulary(pretrained.tokenizer(), pretrained.config)[1])
    return True


def build_model(
    settings: ModelSettings, vocabulary_size: int, seed: int, precision: str = "float32", **options: Any
) -> Seq2Seq:
    """Create a model whose random weights are determined by the seed.

    Kernels are initialised as in Glorot and Bengio (2010), with the variance 2 / (inputs + outputs). If a kernel
    concatenates several matrices, as in an LSTM, `outputs` is the size of one matrix.

    Args:
        settings: The settings of the model.
        vocabulary_size: The number of tokens.
        seed: The seed of the random weights.
        precision: The precision of the computation.
        **options: Further arguments of `Seq2Seq`.
    """
    model = Seq2Seq(settings, vocabulary_size, precision, **options)
    for number, weight in enumerate(model.trainable_variables):
        weight_seed = seed + 1000 * number
        # The layers themselves initialise biases to zeros, the forget gate of an LSTM to ones, and gains to ones.
        if weight.name in ("embeddings", "projection"):
            weight.assign(keras.initializers.RandomNormal(stddev=0.05, seed=weight_seed)(weight.shape))
        elif weight.name == "kernel":
            limit = (6 / (weight.shape[0] + weight.shape[1] / getattr(weight, "parts", 1))) ** 0.5
            weight.assign(keras.initializers.RandomUniform(-limit, limit, seed=weight_seed)(weight.shape))
        elif weight.name == "recurrent_kernel":
            weight.assign(keras.initializers.Orthogonal(seed=weight_seed)(weight.shape))
    return model


def start_from_frequencies(model: Seq2Seq, shards: Sequence[EncodedPairs]) -> None:
    """Set the output bias so the untrained model predicts each token with its relative frequency in the replies.

    The model then does not have to learn these frequencies in the first epoch. The frequencies are smoothed by adding
    0.1 to each count, because some tokens never occur.
    """
    smoothed = np.full(model.bias.shape[0], 0.1)
    for pairs in shards:
        smoothed += np.bincount(pairs.targets.joined(), minlength=len(smoothed))
        smoothed[EOS] += len(pairs)
    smoothed[[PAD, BOS, ASK]] = 1e-6
    model.bias.assign(np.log(smoothed / smoothed.sum()))


def start_from_trained(model: Seq2Seq, vocabulary: Vocabulary, other: Trained) -> None:
    """Copy all weights from a trained model with the same layer sizes. The vocabularies may differ.

    Args:
        model: The model whose weights are set.
        vocabulary: The vocabulary of `model`.
        other: The trained model and its vocabulary.
    """
    recurrent = {id(v.value) for layer in (model.encoder, model.decoder) for v in layer.trainable_variables}
    sizes = len(vocabulary), len(other.vocabulary)
    for weight, old in zip(weights_of(model), weights_of(other.model), strict=True):
        value = old.numpy()
        token_axes = [axis for axis, both in enumerate(zip(weight.shape, old.shape, strict=True)) if both == sizes]
        if token_axes and id(weight) not in recurrent:
            axis = token_axes[0]
            initial, value = (np.moveaxis(array, axis, 0) for array in (weight.numpy(), value))
            value = np.moveaxis(transfer_rows(initial, vocabulary, value, other.vocabulary), 0, axis)
        weight.assign(value)


def transfer_rows(initial: Array, vocabulary: Vocabulary, old_rows: Array, old_vocabulary: Vocabulary) -> Array:
    """Convert a weight with one row per token from an old vocabulary to a new one.

    Tokens in both vocabularies keep their rows. The row of a new token is the mean of the old rows of its characters or
    bytes. New bytes and the biases of new tokens keep their initial values.

    Args:
        initial: The initial rows of the new vocabulary, [vocabulary, ...].
        vocabulary: The new vocabulary.
        old_rows: The rows of the old vocabulary, [old vocabulary, ...].
        old_vocabulary: The old vocabulary.

    Returns:
        The rows of the new vocabulary, [vocabulary, ...].
    """
    old_ids = {token: i for i, token in enumerate(old_vocabulary.tokens)}
    rows = initial.copy()
    for i, token in enumerate(vocabulary.tokens):
        if token in old_ids:
            rows[i] = old_rows[old_ids[token]]
        elif i < vocabulary.first_byte and initial.ndim > 1:
            rows[i] = old_rows[old_vocabulary.ids([token])].mean(axis=0)
    return rows
