"""The encoder: a question to memory (one vector a token) and the state the decoder starts from."""

from typing import Any

import keras
import tensorflow as tf

from chatbot.model.recurrent import Stack, State


class Encoder(keras.layers.Layer):
    """A recurrent stack, or two that read in opposite directions and share the units between them."""

    def __init__(
        self,
        cell: str,
        units: int,
        num_layers: int,
        keep_prob: float,
        bidirectional: bool,
        precision: str = "float32",
        fast: bool = True,
    ) -> None:
        super().__init__()
        each = units // 2 if bidirectional else units

        def stack(first_dropout: int) -> Stack:
            return Stack(cell, each, num_layers, keep_prob, first_dropout, precision, fast)

        self.forward = stack(100)
        self.backward = stack(200) if bidirectional else None

    def build(self, *_: Any, **__: Any) -> None:
        """Nothing: its layers build themselves when they are called; Keras would trace the call once more for it."""

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
