"""Positions in a Transformer: what is added to the embeddings of tokens."""

import numpy as np
import tensorflow as tf

from chatbot.model.multi_head import Layout
from chatbot.model.operations import size_on_device

# The longest wave of the positions, in tokens.
LONGEST_WAVE = 10_000.0


def with_positions(embedded: tf.Tensor, layout: Layout) -> tf.Tensor:
    """Return embeddings, scaled, with the waves of their positions: [vectors, size].

    embedded: [tokens, size], packed, or [rows, time, size], by the layout.
    """
    of_time = waves(layout.places, embedded.shape[-1])
    if layout.packing is None:
        return tf.reshape(scaled_with(of_time, embedded), [-1, embedded.shape[-1]])
    return scaled_with(tf.gather(of_time, layout.packing.to_packed % size_on_device(layout.places)), embedded)


def scaled_with(of_positions: tf.Tensor, embedded: tf.Tensor) -> tf.Tensor:
    """Return embeddings times the root of their size, plus the waves of their positions."""
    return embedded * embedded.shape[-1] ** 0.5 + of_positions


def waves(positions: tf.Tensor, size: int) -> tf.Tensor:
    """Return sines and cosines of positions, [positions, size], with wavelengths from 2 pi to LONGEST_WAVE times that.

    positions: [positions] float32. size: even.
    """
    rates = LONGEST_WAVE ** -(np.arange(size // 2) / (size // 2))
    angles = positions[:, None] * tf.constant(rates.astype(np.float32))
    return tf.concat([tf.sin(angles), tf.cos(angles)], -1)
