"""A right-padded batch as its real tokens only: no layer computes what is padding.

PyTorch's PackedSequence is laid out like this. Rows are sorted by length, the longest first, and tokens stand
step by step, so that at each step the rows that go on are the first of those that were there.

Behind the tokens stand fillers, all zeros, up to a multiple. oneDNN makes a kernel for every shape of a product,
0.7 ms each, and no two batches have as many tokens; with fillers few shapes are met, again and again.
"""

from typing import Any, NamedTuple

import tensorflow as tf

# Tokens with their fillers are a multiple of this. BENCHMARKS.md compares a few.
MULTIPLE = 16


class Packing(NamedTuple):
    """Where each real token is. All int32; tokens: with fillers, of which there is one at least."""

    order: tf.Tensor  # [rows] the rows, the longest first
    back: tf.Tensor  # [rows] where each row is in that order
    counts: tf.Tensor  # [longest] rows that have a token at this step
    starts: tf.Tensor  # [longest] tokens of all steps before
    fillers: tf.Tensor  # scalar, how many
    flat: tf.Tensor  # [tokens] where each token is among the padded positions, row by row; behind them for fillers
    places: tf.Tensor  # [rows, time] where each padded position's token is; a filler at padding
    before: tf.Tensor  # [tokens] what precedes each token in its row, among first states and tokens
    last: tf.Tensor  # [rows] the last token of each row


def packing(mask: tf.Tensor) -> Packing:
    """mask [rows, time] bool, True at real tokens: padding on the right, and no row without a token."""
    rows, time = tf.shape(mask)[0], tf.shape(mask)[1]
    lengths = tf.math.count_nonzero(mask, axis=1, dtype=tf.int32)
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    back = tf.math.invert_permutation(order)
    goes_on = tf.range(tf.reduce_max(lengths))[:, None] < tf.gather(lengths, order)  # [longest, rows]
    counts = tf.math.count_nonzero(goes_on, axis=1, dtype=tf.int32)
    starts = tf.cumsum(counts, exclusive=True)
    step, row = tf.unstack(tf.cast(tf.where(goes_on), tf.int32), axis=1)  # [tokens] each
    # At a step, row r stands at starts + r; it stood so one step earlier, or among the first states.
    earlier = tf.gather(tf.concat([[-rows], starts], 0), step)
    padded_starts = tf.pad(starts, [[0, time - tf.size(starts)]])  # [time]
    tokens = tf.shape(step)[0]
    fillers = MULTIPLE - tokens % MULTIPLE
    return Packing(
        order=order,
        back=back,
        counts=counts,
        starts=starts,
        fillers=fillers,
        flat=tf.pad(tf.gather(order, row) * time + step, [[0, fillers]], constant_values=rows * time),
        places=tf.where(mask, padded_starts + back[:, None], tokens),
        before=tf.pad(rows + earlier + row, [[0, fillers]]),
        last=tf.gather(starts, lengths - 1) + back,
    )


def pack(padded: tf.Tensor, where: Packing) -> tf.Tensor:
    """[rows, time, ...] -> [tokens, ...]. Nothing may look at fillers: their gradient counts as that of padding."""

    @tf.custom_gradient
    def run(padded: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return _packed(padded, where), lambda gradient: _padded(gradient, where)

    return run(padded)


def unpack(packed: tf.Tensor, where: Packing) -> tf.Tensor:
    """[tokens, ...], of which fillers are zeros -> [rows, time, ...], zeros at padding."""

    @tf.custom_gradient
    def run(packed: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return _padded(packed, where), lambda gradient: _packed(gradient, where)

    return run(packed)


def _packed(padded: tf.Tensor, where: Packing) -> tf.Tensor:
    positions = tf.reshape(padded, [-1, *padded.shape[2:]])
    return tf.gather(tf.pad(positions, [[0, 1], *[[0, 0]] * (len(padded.shape) - 2)]), where.flat)


def _padded(packed: tf.Tensor, where: Packing) -> tf.Tensor:
    """By gathering: scattering, which TensorFlow's own gradient would do, runs on one thread."""
    return tf.gather(packed, where.places)
