"""The weights that a new run begins with."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import Vocabulary
from chatbot.corpus.word_vectors import read_word_vectors
from chatbot.model.new_model import start_from_frequencies, start_from_vectors
from chatbot.model.saved import load_trained, weights_of
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.attempt import other_attempt
from chatbot.training.data import Data

Array = npt.NDArray[np.float32]


def set_initial_weights(model: Seq2Seq, settings: Settings, data: Data) -> None:
    """Set the bias to log frequencies of tokens, embeddings to --word-vectors, all weights to --init-from."""
    start_from_frequencies(model, data.training)
    if settings.model.word_vectors is not None:
        vectors = Path(settings.model.word_vectors)
        start_from_vectors(model, read_word_vectors(vectors, data.vocabulary, settings.model.embedding_size))
    if settings.run.init_from is None:
        return
    with tf.device("/CPU:0"):
        other = load_trained(other_attempt(settings))
    recurrent = {id(v.value) for layer in (model.encoder, model.decoder) for v in layer.trainable_variables}
    sizes = len(data.vocabulary), len(other.vocabulary)
    for weight, old in zip(weights_of(model), weights_of(other.model), strict=True):
        value = old.numpy()
        of_tokens = [axis for axis, both in enumerate(zip(weight.shape, old.shape, strict=True)) if both == sizes]
        if of_tokens and id(weight) not in recurrent:
            axis = of_tokens[0]
            own, value = (np.moveaxis(array, axis, 0) for array in (weight.numpy(), value))
            value = np.moveaxis(rows_by_token(own, data.vocabulary, value, other.vocabulary), 0, axis)
        weight.assign(value)


def rows_by_token(own: Array, vocabulary: Vocabulary, other: Array, old: Vocabulary) -> Array:
    """Return the rows of the tokens of a vocabulary, taken from those of an old one.

    own: as they were drawn, [vocabulary, ...]. other: [old, ...]. A new token starts with the mean of the rows of its
    characters or bytes; its bias, and a byte, stay as they are.
    """
    ids = {token: i for i, token in enumerate(old.tokens)}
    rows = own.copy()
    for i, token in enumerate(vocabulary.tokens):
        if token in ids:
            rows[i] = other[ids[token]]
        elif i < vocabulary.first_byte and own.ndim > 1:
            rows[i] = other[old.ids([token])].mean(axis=0)
    return rows
