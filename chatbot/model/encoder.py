"""The encoder: from a question to its memory, one vector for each token, and the decoder's initial states."""

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.recurrent import Stack, State


class Encoder(keras.layers.Layer):
    """A recurrent stack, or two stacks of rnn_size / 2 units that read in opposite directions."""

    def __init__(self, settings: ModelSettings, precision: str = "float32") -> None:
        super().__init__()
        units = settings.rnn_size // 2 if settings.bidirectional else settings.rnn_size

        def stack(first_dropout: int) -> Stack:
            return Stack(settings, settings.embedding_size, units, first_dropout, precision)

        self.forward = stack(100)
        self.backward = stack(200) if settings.bidirectional else None
        self.built = True

    def call(self, embedded: tf.Tensor, mask: tf.Tensor, seed: tf.Tensor | None) -> tuple[tf.Tensor, list[State]]:
        """embedded [rows, source, embedding] -> memory [rows, source, rnn_size], the last state of each layer.

        mask: [rows, source] bool, True at real tokens. seed: [2] int32 draws the dropout masks; None: no dropout.
        """
        memory, states = self.forward(embedded, None, mask, seed)
        if self.backward is None:
            return memory, states
        lengths = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)  # [rows]

        def reverse(x: tf.Tensor) -> tf.Tensor:
            """Reverse the real tokens. Padding stays on the right, as cuDNN requires."""
            return tf.reverse_sequence(x, lengths, seq_axis=1)

        backward_memory, backward_states = self.backward(reverse(embedded), None, mask, seed)
        memory = tf.concat([memory, reverse(backward_memory)], axis=-1)
        states = [
            [tf.concat(parts, axis=-1) for parts in zip(state, backward_state, strict=True)]
            for state, backward_state in zip(states, backward_states, strict=True)
        ]
        return memory, states
