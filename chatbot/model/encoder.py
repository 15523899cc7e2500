"""The encoder: a question to memory (one vector a token) and the state the decoder starts from."""

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.recurrent import Stack, State


class Encoder(keras.layers.Layer):
    """A recurrent stack, or two that read in opposite directions and share the units between them."""

    def __init__(self, settings: ModelSettings, precision: str = "float32") -> None:
        super().__init__()
        units = settings.rnn_size // 2 if settings.bidirectional else settings.rnn_size

        def stack(first_dropout: int) -> Stack:
            return Stack(settings, settings.embedding_size, units, first_dropout, precision)

        self.forward = stack(100)
        self.backward = stack(200) if settings.bidirectional else None
        self.built = True

    def call(self, embedded: tf.Tensor, mask: tf.Tensor, seed: tf.Tensor | None) -> tuple[tf.Tensor, list[State]]:
        """embedded [rows, source, embedding], mask [rows, source] -> memory [rows, source, units], states."""
        memory, states = self.forward(embedded, None, mask, seed)
        if self.backward is None:
            return memory, states
        lengths = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)  # [rows]

        def reverse(x: tf.Tensor) -> tf.Tensor:
            """Only the real tokens, so that the padding stays on the right, as cuDNN asks."""
            return tf.reverse_sequence(x, lengths, seq_axis=1)

        backward, backward_states = self.backward(reverse(embedded), None, mask, seed)
        memory = tf.concat([memory, reverse(backward)], axis=-1)
        joined = [
            [tf.concat(parts, axis=-1) for parts in zip(ahead, back, strict=True)]
            for ahead, back in zip(states, backward_states, strict=True)
        ]
        return memory, joined
