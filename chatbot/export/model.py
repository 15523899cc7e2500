"""Prepares a model for export. It gets plain layers for padded ids, and its weights can be stored in a smaller dtype.

Custom gradients and the packed layout are not exported, because they only speed up training. All export formats compute
in float32, with the values that `restore_weight` returns.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.attempts.trained import Trained
from chatbot.config.export import FLOAT16, FLOAT32, INT8
from chatbot.corpus.vocabulary import PAD
from chatbot.decoding.array_functions import Floats
from chatbot.decoding.ngrams import Ngrams
from chatbot.model.attention import BahdanauAttention
from chatbot.model.copying import spelling_table
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Packing, Sequences

MAX_INT8 = 127  # the largest absolute value; -128 is not used


def plain_model(trained: Trained, ngrams: Ngrams | None = None) -> Seq2Seq:
    """Return a model with the same weights whose layers accept padded ids.

    Args:
        trained: The trained model.
        ngrams: The n-grams that `Seq2Seq.step` uses, or None for no n-grams.
    """
    settings = dataclasses.replace(trained.settings.model, plain_layers=True, ngrams=ngrams.order if ngrams else 0)
    spellings = spelling_table(trained.vocabulary.spellings())
    model = Seq2Seq(settings, len(trained.vocabulary), spellings=spellings, ngrams=ngrams, on_gpu=False)
    if isinstance(model.decoder.attention, BahdanauAttention):
        model.decoder.attention.chunks = None
    for variable, value in zip(model.trainable_variables, trained.model.trainable_variables, strict=True):
        variable.assign(value)
    return model


def sequences_in_graph(ids: tf.Tensor) -> Sequences:
    """Convert padded ids [rows, time] int64 to a batch for a plain model. Padding is not removed."""
    mask = tf.not_equal(ids, PAD)
    positions = tf.range(tf.size(ids, tf.int64))
    unused = dict.fromkeys(Packing._fields)
    lengths = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)
    to_padded = tf.reshape(positions, tf.shape(ids))
    packing = Packing(**unused)._replace(
        lengths=lengths,
        to_packed=positions,
        to_padded=to_padded,
        mirrored=tf.reverse_sequence(to_padded, lengths, seq_axis=1),
    )
    return Sequences(ids, mask, packing)


def with_weights(model: Seq2Seq, weights: Sequence[tf.Tensor]) -> keras.StatelessScope:
    """Return a scope in which the model uses the given values for its trainable variables."""
    return keras.StatelessScope(list(zip(model.trainable_variables, weights, strict=True)))


class Stored(NamedTuple):
    """A weight in the dtype in which an export stores it.

    Attributes:
        values: The values, with the shape of the weight and dtype float32, float16 or int8.
        scales: The float32 factors to multiply the values by. int8 values have one factor per index along `axis`. Other
            values have the single factor 1.
        axis: The axis along which the scales vary.
    """

    values: npt.NDArray[np.generic]
    scales: Floats | np.float32 = np.float32(1)
    axis: int = 0


def store_weight(weight: Floats, kind: str, rows: bool) -> Stored:
    """Convert a weight to a smaller dtype. Vectors remain float32, because they are small and biases have a wide range.

    Args:
        weight: The weight.
        kind: The name of the dtype, one of WEIGHTS. With int8, each output of the matrix product has its own scale.
        rows: Whether the outputs are the rows of the matrix, as in the embedding and the projection, or the columns.
    """
    if kind == FLOAT32 or weight.ndim < 2:
        return Stored(weight)
    if kind == FLOAT16:
        limit = np.finfo(np.float16).max
        return Stored(weight.clip(-limit, limit).astype(np.float16))
    assert kind == INT8
    axis = 0 if rows else weight.ndim - 1
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scales = np.maximum(np.abs(weight).max(axis=others, keepdims=True), 1e-12) / MAX_INT8
    return Stored(np.rint(weight / scales).astype(np.int8), scales.astype(np.float32), axis)


def restore_weight(weight: Stored) -> Floats:
    """Convert a stored weight back to float32."""
    return weight.values.astype(np.float32) * weight.scales
