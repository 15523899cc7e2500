"""Attention of several heads (Vaswani et al., 2017): over whole sequences, and of the last token alone.

Vectors are matrices [vectors, features], so that every product is one of two matrices. Gradients are written out: those
of TensorFlow compute shapes, and transpose keys and values once more.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from chatbot.model.operations import matmul, rounded
from chatbot.model.sequences import Packing, Sequences


class Layout(NamedTuple):
    """How the vectors of a batch of sequences follow one another: row by row with their padding, or packed."""

    shape: tf.Tensor  # [2] int32, rows and time
    places: tf.Tensor  # [time] float32: 0, 1, 2 and so on
    packing: Packing | None = None  # None: row by row
    is_real: tf.Tensor | None = None  # of packed vectors, [vectors, 1] float32, 0 for fillers


def layout_of(sequences: Sequences) -> Layout:
    """Return the layout of the vectors of sequences."""
    if not sequences.is_packed:
        return row_by_row(sequences.ids)
    packing = sequences.packing
    tokens = tf.size(packing.to_packed)
    is_real = tf.cast(tf.range(tokens) < tokens - packing.fillers, tf.float32)
    return row_by_row(packing.to_padded)._replace(packing=packing, is_real=is_real[:, None])


def row_by_row(positions: tf.Tensor) -> Layout:
    """Return the layout of one vector for each element of positions, [rows, time]."""
    # The places are computed on the device of the positions, where tf.range is not.
    return Layout(tf.shape(positions), tf.cumsum(tf.ones_like(positions[0], tf.float32), exclusive=True))


def in_rows(x: tf.Tensor, layout: Layout) -> tf.Tensor:
    """[vectors, size] -> [rows, time, size], at padding any values. By its gradient, fillers have 0."""
    if layout.packing is None:
        return tf.reshape(x, tf.concat([layout.shape, [x.shape[-1]]], 0))
    packing = layout.packing
    is_real = layout.is_real

    @tf.custom_gradient
    def run(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(d_rows: tf.Tensor) -> tf.Tensor:
            return tf.gather(tf.reshape(d_rows, [-1, x.shape[-1]]), packing.to_packed) * is_real

        return tf.gather(x, packing.to_padded), gradient

    return run(x)


def split_heads(x: tf.Tensor, parts: int, heads: int, layout: Layout) -> list[tf.Tensor]:
    """[vectors, parts * size] -> each part by itself, [rows, heads, time, size / heads], at padding any values.

    By its gradient, fillers have 0.
    """

    @tf.custom_gradient
    def run(x: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
        def gradient(*d_parts: tf.Tensor) -> tf.Tensor:
            d_x = _joined(d_parts, layout)
            return d_x if layout.packing is None else d_x * layout.is_real

        return _split(x, parts, heads, layout), gradient

    return list(run(x))


def join_heads(x: tf.Tensor, layout: Layout) -> tf.Tensor:
    """[rows, heads, time, part] -> [vectors, heads * part]. The gradient with respect to fillers must be 0."""

    @tf.custom_gradient
    def run(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return _joined([x], layout), lambda d_joined: _split(d_joined, 1, x.shape[1], layout)[0]

    return run(x)


def _split(x: tf.Tensor, parts: int, heads: int, layout: Layout) -> list[tf.Tensor]:
    of_parts = [parts, heads, x.shape[-1] // (parts * heads)]
    padded = x if layout.packing is None else tf.gather(x, layout.packing.to_padded)
    by_part = tf.transpose(tf.reshape(padded, tf.concat([layout.shape, of_parts], 0)), [2, 0, 3, 1, 4])
    return tf.unstack(by_part, num=parts)  # which copies nothing


def _joined(of_parts: Sequence[tf.Tensor], layout: Layout) -> tf.Tensor:
    _, heads, _, size = of_parts[0].shape
    by_vector = tf.transpose(tf.stack(of_parts), [1, 3, 0, 2, 4])
    padded = tf.reshape(by_vector, [-1, len(of_parts) * heads * size])
    return padded if layout.packing is None else tf.gather(padded, layout.packing.to_packed)


def penalties(mask: tf.Tensor) -> tf.Tensor:
    """Return what is added to scores, in the shape of the mask: 0, or where it is False the least float32."""
    return tf.where(mask, 0.0, tf.float32.min)


def attended(factors: Sequence[tf.Tensor], added: tf.Tensor, precision: str, scale: float) -> tf.Tensor:
    """Return softmax(queries keys scale + scores) values of each head, [rows, heads, target, part].

    factors: queries [rows, heads, target, part], keys and values [rows, heads, source, part], and with learned scores
    of distances these, [1, heads, target, source], or [rows, heads, target, source] where no gradient is asked for.
    added: `penalties`, broadcast to [rows, heads, target, source].
    """

    @tf.custom_gradient
    def run(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, *learned: tf.Tensor) -> tuple[tf.Tensor, Any]:
        queries, keys, values = (rounded(x, precision) for x in (queries, keys, values))
        weights = weights_of(queries, keys, added + learned[0] if learned else added, precision, scale)
        rounded_weights = rounded(weights, precision)

        def gradient(d_means: tf.Tensor) -> tuple[tf.Tensor, ...]:
            d_means = rounded(d_means, precision)
            d_weights = matmul(d_means, values, precision, transpose_b=True) * weights
            d_sums = d_weights - weights * tf.reduce_sum(d_weights, -1, keepdims=True)
            d_learned = [tf.reduce_sum(d_sums, 0, keepdims=True) for _ in learned]
            d_scores = rounded(d_sums * scale, precision)
            d_queries = matmul(d_scores, keys, precision)
            d_keys = matmul(d_scores, queries, precision, transpose_a=True)
            return d_queries, d_keys, matmul(rounded_weights, d_means, precision, transpose_a=True), *d_learned

        return matmul(rounded_weights, values, precision), gradient

    return run(*factors)


def weights_of(queries: tf.Tensor, keys: tf.Tensor, added: tf.Tensor, precision: str, scale: float) -> tf.Tensor:
    """Return the weights of each head, [rows, heads, target, source]. The arguments are those of `attended`."""
    scores = matmul(queries, keys, precision, transpose_b=True) * scale
    return tf.nn.softmax(scores + added)
