"""Implements the functions of `array_functions` for TensorFlow tensors in graphs."""

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf


class TensorFunctions:
    """The array functions for TensorFlow tensors. See `NumpyFunctions` for their documentation."""

    where = staticmethod(tf.where)
    exp = staticmethod(tf.exp)
    log = staticmethod(tf.math.log)
    maximum = staticmethod(tf.maximum)
    minimum = staticmethod(tf.minimum)
    reshape = staticmethod(tf.reshape)
    concatenate = staticmethod(tf.concat)
    zeros_like = staticmethod(tf.zeros_like)
    log_softmax = staticmethod(tf.nn.log_softmax)
    log1p = staticmethod(tf.math.log1p)

    float32 = staticmethod(partial(tf.cast, dtype=tf.float32))
    int64 = staticmethod(partial(tf.cast, dtype=tf.int64))
    max = staticmethod(partial(tf.reduce_max, axis=-1, keepdims=True))
    min = staticmethod(partial(tf.reduce_min, axis=-1, keepdims=True))
    cumulative_sum = staticmethod(partial(tf.cumsum, axis=-1))
    argmax = staticmethod(partial(tf.argmax, axis=-1))
    searchsorted = staticmethod(partial(tf.searchsorted, out_type=tf.int64))
    cond = staticmethod(tf.cond)
    take = staticmethod(partial(tf.gather, batch_dims=1))
    array = staticmethod(tf.convert_to_tensor)
    shape = staticmethod(tf.shape)
    pad = staticmethod(tf.pad)
    mapped = staticmethod(tf.nest.map_structure)

    @staticmethod
    def sum(x: tf.Tensor) -> tf.Tensor:
        """Sum along the last axis, or count the true values of a boolean tensor."""
        values = tf.cast(x, tf.int64) if x.dtype == tf.bool else x
        return tf.reduce_sum(values, axis=-1, keepdims=True)

    @staticmethod
    def kth_largest(x: tf.Tensor, k: int) -> tf.Tensor:
        """Return the kth largest value along the last axis."""
        return tf.math.top_k(x, k).values[..., -1:]

    @staticmethod
    def largest(x: tf.Tensor, k: int) -> tf.Tensor:
        """Return the indices of the k largest values of each row."""
        return tf.cast(tf.math.top_k(x, k).indices, tf.int64)

    @staticmethod
    def rows(arrays: Any, indices: tf.Tensor) -> Any:
        """Select rows of each tensor in a structure."""
        return tf.nest.map_structure(lambda x: tf.gather(x, indices), arrays)

    @staticmethod
    def repeated(arrays: Any, times: tf.Tensor | int) -> Any:
        # tf.repeat is not used, because it computes sizes on the GPU and the host must wait.
        """Repeat each row of each tensor in a structure. The copies of a row are adjacent."""
        return tf.nest.map_structure(
            lambda x: tf.gather(x, tf.cast(tf.range(tf.shape(x)[0] * times) // times, tf.int64)), arrays
        )

    @staticmethod
    def row_numbers(x: tf.Tensor) -> tf.Tensor:
        """Return the index of each row."""
        return tf.cast(tf.range(tf.shape(x)[0]), tf.int64)[:, None]

    @staticmethod
    def column(x: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        """Return a column filled with one value."""
        return tf.fill([tf.shape(x)[0], 1], tf.cast(value, tf.int64))

    @staticmethod
    def put(x: tf.Tensor, indices: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Return x with some elements of each row replaced."""
        return tf.tensor_scatter_nd_update(x, _with_rows(indices), values)

    @staticmethod
    def forbid(x: tf.Tensor, indices: tf.Tensor, are_forbidden: tf.Tensor) -> tf.Tensor:
        """Return x with forbidden elements set to -inf."""
        limits = tf.where(are_forbidden, np.float32(-np.inf), np.float32(np.inf))
        return tf.tensor_scatter_nd_min(x, _with_rows(indices), limits)

    @staticmethod
    def ranges(first: tf.Tensor, last: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Concatenate the ranges of integers from `first` to `last` (exclusive) of all rows."""
        numbers = tf.ragged.range(first, last)
        return numbers.value_rowids(), numbers.values

    @staticmethod
    def add_at(x: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Return x with values added to the given elements."""
        return tf.tensor_scatter_nd_add(x, tf.stack([rows, columns], axis=1), values)

    @staticmethod
    def needed_columns(are_needed: tf.Tensor) -> slice:
        """Return an index of all columns. Selecting fewer would be slower, because the shape would depend on values."""
        return slice(None)


def _with_rows(indices: tf.Tensor) -> tf.Tensor:
    """Prepend the row index to each column index: [rows, number] -> [rows, number, 2]."""
    rows = tf.broadcast_to(tf.cast(tf.range(tf.shape(indices)[0]), indices.dtype)[:, None], tf.shape(indices))
    return tf.stack([rows, indices], axis=-1)
