"""The encoder: from a question to its memory, one vector for each token, and the decoder's initial states."""

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.dropout import BACKWARD_ENCODER, FORWARD_ENCODER
from chatbot.model.gpu import on_gpu
from chatbot.model.packing import mirror, unpack
from chatbot.model.recurrent import Stack, State, is_packed
from chatbot.model.sequences import Sequences


class Encoder(keras.layers.Layer):
    """A recurrent stack, or two stacks of rnn_size / 2 units that read in opposite directions."""

    def __init__(self, settings: ModelSettings, precision: str = "float32") -> None:
        super().__init__()
        units = settings.rnn_size // 2 if settings.bidirectional else settings.rnn_size

        def stack(first_dropout: int) -> Stack:
            return Stack(settings, settings.encoder_depth, settings.embedding_size, units, first_dropout, precision)

        self.forward = stack(FORWARD_ENCODER)
        self.backward = stack(BACKWARD_ENCODER) if settings.bidirectional else None
        self._settings = settings
        self.built = True

    def call(self, embedded: tf.Tensor, sequences: Sequences, key: tf.Tensor | None) -> tuple[tf.Tensor, list[State]]:
        """embedded [tokens or rows, source, embedding] -> memory [rows, source, rnn_size], each layer's last state.

        embedded: in the layout of `is_packed`. key: [1] uint64 draws the dropout masks; None: no dropout.
        """
        packed, packing = is_packed(self._settings), sequences.packing
        outputs, states = self.forward(embedded, None, sequences, key)
        if self.backward is not None:

            def reverse(x: tf.Tensor) -> tf.Tensor:
                """Reverse the real tokens. Padding stays on the right, as cuDNN requires."""
                return mirror(x, packing) if packed else tf.reverse_sequence(x, lengths, seq_axis=1)

            # From the mask, because packing.lengths would have to be copied to a GPU.
            lengths = tf.reduce_sum(tf.cast(sequences.mask, tf.int64), 1) if on_gpu() else packing.lengths
            backward_outputs, backward_states = self.backward(reverse(embedded), None, sequences, key)
            outputs = tf.concat([outputs, reverse(backward_outputs)], axis=-1)
            states = [
                [tf.concat(parts, axis=-1) for parts in zip(state, backward_state, strict=True)]
                for state, backward_state in zip(states, backward_states, strict=True)
            ]
        return unpack(outputs, packing) if packed else outputs, states
