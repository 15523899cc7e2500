"""The recurrent decoder: a stack of recurrent layers, followed by attention to the question.

The recurrent layers do not depend on the attention (Luong et al., 2015). Training can therefore run each layer over the
whole reply at once, with cuDNN on a GPU.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.attention import Attention, BahdanauAttention, LuongAttention
from chatbot.model.copying import NO_COPIES, Copies, Copying
from chatbot.model.operations import POLICIES, concat_features, matmul
from chatbot.model.recurrent import DECODER, PROJECTION, Dropout, Stack, State
from chatbot.model.sequences import Sequences, pack, unpack


class Decoded(NamedTuple):
    """The decoder's outputs at each position, from which `Seq2Seq` computes losses and token probabilities."""

    attended: tf.Tensor  # [positions, embedding] float32
    copies: Copies | tuple[()] = NO_COPIES
    question: tf.Tensor | tuple[()] = ()  # [positions, source] int64, ids of the question; () without copying

    def part(self, part: slice) -> "Decoded":
        """Return a slice of the positions."""
        result: Decoded = tf.nest.map_structure(lambda x: x[part], self)
        return result


class SharedDistributions(NamedTuple):
    """Positions with equal next-token distributions, such as the first positions of all replies to one question."""

    first: tf.Tensor  # [distributions] int64, one position for each distribution
    numbers: tf.Tensor  # [positions] int64, index of the distribution that a position uses


# The state of a decoder, by name. These entries change at each step. Their first axis is the hypothesis, and the
# hypotheses of a question are adjacent:
# - "cells": The recurrent states. A Transformer instead has its cached keys and values, [hypotheses, heads, positions,
#   size], padded on the left, and the position of the next token.
# - "history": The last ids, [hypotheses, order - 1] int64, if the model has n-grams.
# - "attention": The attention weights of the last step, [hypotheses, source]. They are updated if present.
# The other entries, such as "memory", "keys" and "mask", belong to the questions. Their first axis is the question.
DecoderState = dict[str, Any]


class Decoder(keras.layers.Layer):
    """A recurrent stack, then attention, then tanh(W [output; context]). Without attention, it is tanh(W output)."""

    def __init__(self, settings: ModelSettings, precision: str = "float32", on_gpu: bool = False) -> None:
        super().__init__()
        units = settings.rnn_size
        self.stack = Stack(settings, units, DECODER, precision, on_gpu)
        self.attention: Attention | None = None
        if settings.attention == "luong":
            self.attention = LuongAttention(units, precision)
        elif settings.attention == "bahdanau":
            self.attention = BahdanauAttention(units, precision, on_gpu)
        self.combine = keras.layers.Dense(settings.embedding_size, use_bias=False, dtype=POLICIES[precision])
        self.combine.build((None, units if self.attention is None else 2 * units))
        self.copying = Copying(units, precision) if settings.copy else None
        self.dropout = Dropout(settings.keep_prob, PROJECTION)
        self._settings = settings
        self._precision = precision
        self.built = True

    def start(self, memory: tf.Tensor, mask: tf.Tensor, states: list[State]) -> DecoderState:
        """Return the state before the first token.

        Args:
            memory: The encoder's outputs, [rows, source, rnn_size].
            mask: True at tokens and False at padding, [rows, source] bool.
            states: The final state of each encoder layer.
        """
        keys = memory if self.attention is None else self.attention.keys(memory)
        state = {"cells": states, "memory": memory, "keys": keys, "mask": mask}
        return state if self.copying is None else {**state, "copy_keys": self.copying.keys(memory)}

    def call(
        self, embedded: tf.Tensor, sequences: Sequences, state: DecoderState, key: tf.Tensor | None
    ) -> tuple[tf.Tensor, Copies | tuple[()]]:
        """Decode whole replies with teacher forcing.

        Args:
            embedded: The embedded replies, [tokens, embedding] or [rows, target, embedding].
            sequences: The replies.
            state: The result of `start`.
            key: The random key of the dropout masks, [1] uint64, or None for no dropout.

        Returns:
            The packed outputs, [tokens, embedding], and the copying probabilities of each token.
        """
        outputs, _ = self.stack(embedded, state["cells"], sequences, key, needs_states=False)
        packing = sequences.packing
        padded = unpack(outputs, packing) if sequences.is_packed else outputs  # [rows, target, units]
        if self.attention is not None:
            context = self.attention(padded, state["keys"], state["memory"], state["mask"])  # [rows, target, units]
            if sequences.is_packed:
                context = pack(context, packing)
            outputs = concat_features(outputs, context)
        packed = outputs if sequences.is_packed else pack(outputs, packing)  # [tokens, units or 2 units]
        copies: Copies | tuple[()] = NO_COPIES
        if self.copying is not None:
            weights = self.copying.compute_weights(padded, state["copy_keys"], state["mask"])  # [rows, target, source]
            copies = Copies(self.copying.log_actions(packed), pack(weights, packing))
        return self.dropout(self._combine(packed), key), copies

    @property
    def cell_structure(self) -> Any:
        """The structure of the state's "cells"."""
        tensors = 2 if self._settings.cell == "lstm" else 1
        return [[0] * tensors] * self._settings.num_layers

    def attention_weights(self, embedded: tf.Tensor, sequences: Sequences, state: DecoderState) -> tf.Tensor:
        """Return the attention weights of each target position, without dropout.

        The decoder must have attention. The arguments are those of `call`.

        Returns:
            The weights, [rows, target, source].
        """
        assert self.attention is not None
        outputs, _ = self.stack(embedded, state["cells"], sequences, None, needs_states=False)
        padded = unpack(outputs, sequences.packing) if sequences.is_packed else outputs  # [rows, target, units]
        return self.attention.compute_weights(padded, state["keys"], state["mask"])

    def step(self, embedded: tf.Tensor, state: DecoderState) -> tuple[tf.Tensor, Copies | tuple[()], DecoderState]:
        """Decode one token of each hypothesis.

        The hypotheses of a question share its memory, because attention treats them as target positions.

        Args:
            embedded: The embedded last ids, [hypotheses, embedding].
            state: The state before this token.

        Returns:
            The outputs, [hypotheses, embedding], the copying probabilities, and the new state.
        """
        outputs, cells = self.stack.step(embedded, state["cells"])  # [hypotheses, units]
        by_row = tf.reshape(outputs, [tf.shape(state["mask"])[0], -1, outputs.shape[-1]])  # [rows, beams, units]
        if self.attention is not None:
            context = self.attention(by_row, state["keys"], state["memory"], state["mask"])  # [rows, beams, units]
            outputs = tf.concat([outputs, tf.reshape(context, tf.shape(outputs))], axis=-1)  # [hypotheses, 2 units]
            if "attention" in state:
                weights = self.attention.compute_weights(by_row, state["keys"], state["mask"])  # [rows, beams, source]
                state = {**state, "attention": tf.reshape(weights, tf.shape(state["attention"]))}
        copies: Copies | tuple[()] = NO_COPIES
        if self.copying is not None:
            weights = self.copying.compute_weights(by_row, state["copy_keys"], state["mask"])  # [rows, beams, source]
            by_hypothesis = tf.reshape(weights, [-1, tf.shape(weights)[2]])  # [hypotheses, source]
            copies = Copies(self.copying.log_actions(outputs), by_hypothesis)
        return self._combine(outputs), copies, {**state, "cells": cells}

    def _combine(self, outputs: tf.Tensor) -> tf.Tensor:
        """Project outputs, concatenated with their contexts, to the size of the embedding."""
        return tf.tanh(matmul(outputs, tf.convert_to_tensor(self.combine.kernel), self._precision))
