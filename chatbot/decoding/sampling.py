"""Sampling by given random numbers."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from chatbot.decoding.search import Pick

# log_probs [rows, vocabulary] float32 -> log_probs, -inf where an id must not be sampled.
Truncation = Callable[[tf.Tensor], tf.Tensor]

# Probabilities are summed in blocks of this size first: a cumulative sum over the vocabulary would take longer.
BLOCK = 128


def sampling(uniform: tf.Tensor, truncations: Sequence[Truncation] = ()) -> Pick:
    """Return the `Pick` that samples an id of each row, by the inverse of the cumulative distribution.

    uniform: [rows, max_length] float32 in [0, 1), one number for each position. A row's ids therefore depend on its own
    numbers alone. truncations: applied in order before an id is sampled.
    """

    def pick(log_probs: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        for truncation in truncations:
            log_probs = truncation(log_probs)
        rows, vocabulary = tf.unstack(tf.shape(log_probs))
        probabilities = tf.pad(tf.nn.softmax(log_probs), [[0, 0], [0, -vocabulary % BLOCK]])
        blocks = tf.reshape(probabilities, [rows, -1, BLOCK])
        sums = tf.cumsum(tf.reduce_sum(blocks, axis=-1), axis=-1)  # [rows, blocks]
        number = uniform[:, position, None] * sums[:, -1:]  # [rows, 1]
        block = _place(sums, number)  # [rows, 1]
        before = tf.gather(tf.pad(sums, [[0, 0], [1, 0]]), block, batch_dims=1)  # [rows, 1]
        within = tf.cumsum(tf.gather(blocks, block[:, 0], batch_dims=1), axis=-1)  # [rows, BLOCK]
        return (block * BLOCK + _place(within, number - before))[:, 0]

    return pick


def _place(sums: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Return the first place whose cumulative sum is above the number, [rows, 1] int64.

    Rounding may have made the number negative or as large as the total. The place always has a probability above 0.

    sums: [rows, places] float32, the total above 0. number: [rows, 1].
    """
    below_total = sums[:, -1:] * (1 - 2**-23)
    return tf.searchsorted(sums, tf.clip_by_value(number, 0.0, below_total), side="right", out_type=tf.int64)
