"""A right-padded batch as its real tokens only, so that no layer computes padding.

The layout is that of PyTorch's PackedSequence. Rows are sorted by length, the longest first. Tokens follow one another
step by step, so that the rows with a token at one step are the first rows of the previous step.

Fillers, which are all zeros, follow the tokens up to a multiple of MULTIPLE. oneDNN compiles a kernel for every shape
of a product, in 0.7 ms each, and the number of tokens differs from batch to batch; with fillers the shapes are few.
"""

from typing import Any, NamedTuple

import tensorflow as tf

# BENCHMARKS.md compares several values.
MULTIPLE = 16


class Packing(NamedTuple):
    """The indices between padded and packed tensors, all int32.

    In the shapes below, "tokens" includes the fillers. There is at least one filler.
    """

    order: tf.Tensor  # [rows] row numbers, the longest row first
    inverse_order: tf.Tensor  # [rows] the place of each row in that order
    counts: tf.Tensor  # [longest] the number of rows with a token at each step
    starts: tf.Tensor  # [longest] the number of tokens in all steps before
    fillers: tf.Tensor  # scalar, the number of fillers
    to_packed: tf.Tensor  # [tokens] the padded position, row by row, of each token; rows * time for fillers
    to_padded: tf.Tensor  # [rows, time] the token of each padded position; a filler at padding
    previous: tf.Tensor  # [tokens] the row's token before each, in first states [rows] followed by tokens
    last: tf.Tensor  # [rows] the last token of each row


def packing_of(mask: tf.Tensor) -> Packing:
    """Compute the packing of a batch.

    mask: [rows, time] bool, True at real tokens; padding is on the right, and each row has at least one token.
    """
    rows, time = tf.shape(mask)[0], tf.shape(mask)[1]
    lengths = tf.math.count_nonzero(mask, axis=1, dtype=tf.int32)
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    inverse_order = tf.math.invert_permutation(order)
    has_token = tf.range(tf.reduce_max(lengths))[:, None] < tf.gather(lengths, order)  # [longest, rows]
    counts = tf.math.count_nonzero(has_token, axis=1, dtype=tf.int32)
    starts = tf.cumsum(counts, exclusive=True)
    step, row = tf.unstack(tf.cast(tf.where(has_token), tf.int32), axis=1)  # [tokens without fillers] each
    # The token of row r is starts[step] + r. The one before it is starts[step - 1] + r, or first state r.
    previous_starts = tf.gather(tf.concat([[-rows], starts], 0), step)
    padded_starts = tf.pad(starts, [[0, time - tf.size(starts)]])  # [time]
    tokens = tf.shape(step)[0]
    fillers = MULTIPLE - tokens % MULTIPLE
    return Packing(
        order=order,
        inverse_order=inverse_order,
        counts=counts,
        starts=starts,
        fillers=fillers,
        to_packed=tf.pad(tf.gather(order, row) * time + step, [[0, fillers]], constant_values=rows * time),
        to_padded=tf.where(mask, padded_starts + inverse_order[:, None], tokens),
        previous=tf.pad(rows + previous_starts + row, [[0, fillers]]),
        last=tf.gather(starts, lengths - 1) + inverse_order,
    )


def pack(padded: tf.Tensor, packing: Packing) -> tf.Tensor:
    """[rows, time, ...] -> [tokens, ...].

    The loss must not depend on fillers: their gradient would be added to the gradient at padding.
    """

    @tf.custom_gradient
    def run(padded: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return _packed(padded, packing), lambda gradient: _padded(gradient, packing)

    return run(padded)


def unpack(packed: tf.Tensor, packing: Packing) -> tf.Tensor:
    """[tokens, ...], zeros at fillers -> [rows, time, ...], zeros at padding."""

    @tf.custom_gradient
    def run(packed: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return _padded(packed, packing), lambda gradient: _packed(gradient, packing)

    return run(packed)


def _packed(padded: tf.Tensor, packing: Packing) -> tf.Tensor:
    positions = tf.reshape(padded, [-1, *padded.shape[2:]])  # [rows * time, ...]
    return tf.gather(tf.pad(positions, [[0, 1], *[[0, 0]] * (len(padded.shape) - 2)]), packing.to_packed)


def _padded(packed: tf.Tensor, packing: Packing) -> tf.Tensor:
    # A gather, because the scatter of TensorFlow's own gradient runs on one thread.
    return tf.gather(packed, packing.to_padded)
