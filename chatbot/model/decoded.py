"""What the decoder computes for the positions of replies, before the projection to the vocabulary."""

from typing import NamedTuple

import tensorflow as tf

from chatbot.model.copying import NO_COPIES, Copies


class Decoded(NamedTuple):
    """Outputs of the decoder, of which `Seq2Seq` computes losses and distributions. [positions, ...] each."""

    attended: tf.Tensor  # [positions, embedding] float32
    copies: Copies | tuple[()] = NO_COPIES
    question: tf.Tensor | tuple[()] = ()  # [positions, source] int64, ids; () without copying

    def part(self, part: slice) -> "Decoded":
        """Return a part of the positions."""
        result: Decoded = tf.nest.map_structure(lambda x: x[part], self)
        return result
