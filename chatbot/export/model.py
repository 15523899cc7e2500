"""The model that an export holds: its layers take padded ids, and its weights may be stored in a smaller type.

The layers are Keras's own: what tf.custom_gradient and the packed layout add is for training. Every format multiplies
in float32, by the values that `restored` returns.
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
from chatbot.decoding.ngrams import Ngrams
from chatbot.model.attention import BahdanauAttention
from chatbot.model.copying import spelling_table
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Packing, Sequences

Floats = npt.NDArray[np.float32]
LARGEST = 127  # of int8; -128 is not used


def plain_model(trained: Trained, ngrams: Ngrams | None = None) -> Seq2Seq:
    """Return the model with the same weights, whose layers take padded ids.

    ngrams: those that `Seq2Seq.step` mixes in; None: none.
    """
    settings = dataclasses.replace(trained.settings.model, plain_layers=True, ngrams=ngrams.order if ngrams else 0)
    spellings = spelling_table(trained.vocabulary.spellings())
    model = Seq2Seq(settings, len(trained.vocabulary), spellings=spellings, ngrams=ngrams, on_gpu=False)
    if isinstance(model.decoder.attention, BahdanauAttention):
        model.decoder.attention.in_chunks = False
    for variable, value in zip(model.trainable_variables, trained.model.trainable_variables, strict=True):
        variable.assign(value)
    return model


def sequences_in_graph(ids: tf.Tensor) -> Sequences:
    """Return a batch as a plain model takes it. ids: [rows, time] int64, padded on the right.

    Its packing has the padding, too: padded ids need no other.
    """
    mask = tf.not_equal(ids, PAD)
    positions = tf.range(tf.size(ids, tf.int64))
    unused = dict.fromkeys(Packing._fields)
    packing = Packing(**unused)._replace(
        lengths=tf.reduce_sum(tf.cast(mask, tf.int32), axis=1),
        to_packed=positions,
        to_padded=tf.reshape(positions, tf.shape(ids)),
    )
    return Sequences(ids, mask, packing)


def with_weights(model: Seq2Seq, weights: Sequence[tf.Tensor]) -> keras.StatelessScope:
    """Let the model compute with these weights in a block, in the order of its trainable variables."""
    return keras.StatelessScope(list(zip(model.trainable_variables, weights, strict=True)))


class Stored(NamedTuple):
    """A weight as it is stored."""

    values: npt.NDArray[np.generic]  # float32, float16 or int8, in the weight's shape
    # What the values are multiplied by, float32 in a shape that broadcasts; of int8, one for each index of `axis`.
    scales: Floats | np.float32 = np.float32(1)
    axis: int = 0


def stored(weight: Floats, kind: str, rows: bool) -> Stored:
    """Return a weight in a type of WEIGHTS. Vectors stay float32: they are few, and biases have a wide range.

    int8 has a scale for each output of the product: a row of the embedding and of the projection, a column of the
    other matrices. rows: whether it is one of the former.
    """
    if kind == FLOAT32 or weight.ndim < 2:
        return Stored(weight)
    if kind == FLOAT16:
        limit = np.finfo(np.float16).max
        return Stored(weight.clip(-limit, limit).astype(np.float16))
    assert kind == INT8
    axis = 0 if rows else weight.ndim - 1
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scales = np.maximum(np.abs(weight).max(axis=others, keepdims=True), 1e-12) / LARGEST
    return Stored(np.rint(weight / scales).astype(np.int8), scales.astype(np.float32), axis)


def restored(weight: Stored) -> Floats:
    """Return the values of a stored weight."""
    return weight.values.astype(np.float32) * weight.scales
