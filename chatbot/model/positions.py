"""Positions in a Transformer: what is added to the embeddings of tokens, or to the scores of attention."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from chatbot.config.form import RELATIVE, TABLE, WAVES, Form
from chatbot.config.model import ModelSettings
from chatbot.model.feed_forward import Normalisation
from chatbot.model.multi_head import Layout
from chatbot.model.operations import size_on_device

# The longest wave of the positions, in tokens.
LONGEST_WAVE = 10_000.0
# Of the first place in a table; BART has no use for the rows before it.
FIRST_ROW = 2


class Positions(keras.layers.Layer):
    """Embeddings with the positions of their tokens, and the learned scores of distances, by form.positions.

    both_directions: whether a token sees those after it, too.
    """

    def __init__(self, settings: ModelSettings, form: Form, both_directions: bool) -> None:
        super().__init__()
        size = settings.embedding_size
        self._form = form
        self._both_directions = both_directions
        self._size = size
        if form.positions == TABLE:
            self.table = self.add_weight(shape=(FIRST_ROW + form.rows, size), initializer="zeros", name="positions")
        if form.positions == RELATIVE:
            shape = (form.buckets, settings.heads)
            self.distances = self.add_weight(shape=shape, initializer="zeros", name="distances")
        self.normalise = Normalisation(size, form) if form.embedding_norm else None
        self.built = True

    def call(self, embedded: tf.Tensor, layout: Layout) -> tf.Tensor:
        """embedded [tokens, size], packed, or [rows, time, size], by the layout -> [vectors, size]."""
        of_time = self._vectors(layout.places)
        if of_time is not None and layout.packing is not None:
            of_time = rows_of(of_time, layout.packing.to_packed % size_on_device(layout.places))
        return tf.reshape(self._sums(embedded, of_time), [-1, self._size])

    def of_places(self, embedded: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """embedded [vectors, size], the place of each in its sequence [vectors] float32 -> [vectors, size]."""
        return self._sums(embedded, self._vectors(places))

    def _vectors(self, places: tf.Tensor) -> tf.Tensor | None:
        """Return what is added to embeddings at places, [places, size]; None where nothing is."""
        if self._form.positions == TABLE:
            own = tf.minimum(tf.cast(places, tf.int32), self._form.rows - 1)  # padding may be beyond the last one
            return rows_of(tf.convert_to_tensor(self.table), own + FIRST_ROW)
        return waves(places, self._size) if self._form.positions == WAVES else None

    def _sums(self, embedded: tf.Tensor, vectors: tf.Tensor | None) -> tf.Tensor:
        x = embedded * self._size**0.5 if self._form.scaled_embedding else embedded
        x = x if vectors is None else x + vectors
        return x if self.normalise is None else self.normalise(x)

    def scores(self, here: tf.Tensor, there: tf.Tensor) -> list[tf.Tensor]:
        """Return what is added to the scores of attention: [rows, heads, target, source], or nothing.

        here [rows, target, 1], there [source]: places, float32.
        """
        if self._form.positions != RELATIVE:
            return []
        buckets = buckets_of(there - here, self._form, self._both_directions)
        scores = rows_of(tf.convert_to_tensor(self.distances), buckets)
        return [tf.transpose(scores, [0, 3, 1, 2])]


def rows_of(table: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """table [rows, size], numbers [...] int32 -> [..., size]. The gradient of tf.gather is of single rows."""

    @tf.custom_gradient
    def run(table: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(d_rows: tf.Tensor) -> tf.Tensor:
            flat = tf.reshape(d_rows, [-1, table.shape[-1]])
            return tf.math.unsorted_segment_sum(flat, tf.reshape(numbers, [-1]), tf.shape(table)[0])

        return tf.gather(table, numbers), gradient

    return run(table)


def buckets_of(distances: tf.Tensor, form: Form, both_directions: bool) -> tf.Tensor:
    """Return the bucket of each distance (Raffel et al., 2020), int32: short ones have their own, longer ones share.

    distances: of what is seen, less than 0 before the place; float32.
    """
    buckets = form.buckets
    first = tf.zeros_like(distances)
    if both_directions:
        buckets //= 2
        first = tf.where(distances > 0, float(buckets), 0.0)
        distances = tf.abs(distances)
    else:
        distances = tf.maximum(-distances, 0.0)
    own = buckets // 2
    octaves = tf.math.log(tf.maximum(distances, 1.0) / own) / np.log(form.farthest / own)
    shared = tf.minimum(own + tf.floor(octaves * (buckets - own)), buckets - 1.0)
    return tf.cast(first + tf.where(distances < own, distances, shared), tf.int32)


def waves(positions: tf.Tensor, size: int) -> tf.Tensor:
    """Return sines and cosines of positions, [positions, size], with wavelengths from 2 pi to LONGEST_WAVE times that.

    positions: [positions] float32. size: even.
    """
    rates = LONGEST_WAVE ** -(np.arange(size // 2) / (size // 2))
    angles = positions[:, None] * tf.constant(rates.astype(np.float32))
    return tf.concat([tf.sin(angles), tf.cos(angles)], -1)
