"""The decoder: a recurrent stack, and attention over the question on top of it.

Attention follows the recurrent layers (Luong et al., 2015), which therefore run over the whole reply at once in
training, on a GPU with cuDNN's kernels.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.attention import Attention, BahdanauAttention, LuongAttention
from chatbot.model.copying import NO_COPIES, Copies, Copying
from chatbot.model.operations import joined, matmul, policy
from chatbot.model.recurrent import DECODER, PROJECTION, Dropout, Stack, State
from chatbot.model.sequences import Sequences, pack, unpack


class Decoded(NamedTuple):
    """Outputs of the decoder, of which `Seq2Seq` computes losses and distributions. [positions, ...] each."""

    attended: tf.Tensor  # [positions, embedding] float32
    copies: Copies | tuple[()] = NO_COPIES
    question: tf.Tensor | tuple[()] = ()  # [positions, source] int64, ids; () without copying

    def part(self, part: slice) -> "Decoded":
        """Return a part of the positions."""
        result: Decoded = tf.nest.map_structure(lambda x: x[part], self)
        return result


class Alike(NamedTuple):
    """Which positions have the same distribution, such as that of the first token of all replies to a question."""

    first: tf.Tensor  # [different] int64, one of the positions with each
    numbers: tf.Tensor  # [positions] int64, which of them a position has


# "cells", the recurrent states, change at each step: their first dimension is the hypothesis, of which each row has the
# same number, one after another. Those of a Transformer are its caches of keys and values, [hypotheses, heads,
# positions, size], in which fewer positions are the last ones, and the position of the next token. So do "history"
# [hypotheses, order - 1] int64, the last ids, of a model with n-grams, and "attention" [hypotheses, source], if the
# state has it: the attention weights of the last step. The other parts, such as "memory", "keys" and "mask", belong to
# the question: their first dimension is the row.
DecoderState = dict[str, Any]

ATTENTIONS: dict[str, type[Attention]] = {"luong": LuongAttention, "bahdanau": BahdanauAttention}


class Decoder(keras.layers.Layer):
    """Recurrent stack -> attention -> attended = tanh(W [output; context]), or tanh(W output) without attention."""

    def __init__(self, settings: ModelSettings, precision: str = "float32", on_gpu: bool = False) -> None:
        super().__init__()
        units = settings.rnn_size
        self.stack = Stack(settings, settings.num_layers, settings.embedding_size, units, DECODER, precision, on_gpu)
        attention = ATTENTIONS.get(settings.attention)  # None for "none"
        self.attention = attention(units, precision, on_gpu) if attention else None
        self.combine = keras.layers.Dense(settings.embedding_size, use_bias=False, dtype=policy(precision))
        self.combine.build((None, 2 * units if attention else units))
        self.copying = Copying(units, precision) if settings.copy else None
        self.dropout = Dropout(settings.keep_prob, PROJECTION)
        self._settings = settings
        self._precision = precision
        self.built = True

    def start(self, memory: tf.Tensor, mask: tf.Tensor, states: list[State]) -> DecoderState:
        """Return the state before the first token.

        memory: [rows, source, rnn_size]. mask: [rows, source] bool. states: the last state of each encoder layer.
        """
        keys = memory if self.attention is None else self.attention.keys(memory)
        state = {"cells": states, "memory": memory, "keys": keys, "mask": mask}
        return state if self.copying is None else {**state, "copy_keys": self.copying.keys(memory)}

    def call(
        self, embedded: tf.Tensor, sequences: Sequences, state: DecoderState, key: tf.Tensor | None
    ) -> tuple[tf.Tensor, Copies | tuple[()]]:
        """embedded [tokens, embedding] or [rows, target, embedding] -> attended [tokens, embedding], packed; copies.

        This is teacher forcing. embedded: in the layout of the ids. key: [1] uint64 draws the dropout masks; None: no
        dropout.
        """
        outputs, _ = self.stack(embedded, state["cells"], sequences, key, last=False)
        attended, copies = self.attended(outputs, sequences, state)
        return self.dropout(attended, key), copies

    def attended(
        self, outputs: tf.Tensor, sequences: Sequences, state: DecoderState
    ) -> tuple[tf.Tensor, Copies | tuple[()]]:
        """outputs of the stack, in the layout of the ids -> attended [tokens, embedding], packed; copies."""
        packing = sequences.packing
        if sequences.is_packed:
            padded = unpack(outputs, packing)
            packed = outputs
        else:
            padded = outputs
            packed = pack(outputs, packing)
        if self.attention is not None:
            context = self.attention(padded, state["keys"], state["memory"], state["mask"])  # [rows, target, units]
            packed = joined(packed, pack(context, packing))  # [tokens, 2 units]
        if self.copying is None:
            return self.combined(packed), NO_COPIES
        weights = self.copying.weights_of(padded, state["copy_keys"], state["mask"])  # [rows, target, source]
        return self.combined(packed), Copies(self.copying.log_actions(packed), pack(weights, packing))

    @property
    def cell_structure(self) -> Any:
        """The structure of the state's "cells"."""
        states = 2 if self._settings.cell == "lstm" else 1
        return [[0] * states] * self._settings.num_layers

    def attention_weights(self, embedded: tf.Tensor, sequences: Sequences, state: DecoderState) -> tf.Tensor:
        """Return the weights of the question's tokens in `call` without dropout, [rows, target, source].

        Only for a decoder with attention.
        """
        assert self.attention is not None
        outputs, _ = self.stack(embedded, state["cells"], sequences, None, last=False)
        padded = unpack(outputs, sequences.packing) if sequences.is_packed else outputs
        return self.attention.weights_of(padded, state["keys"], state["mask"])

    def step(self, embedded: tf.Tensor, state: DecoderState) -> tuple[tf.Tensor, Copies | tuple[()], DecoderState]:
        """embedded [hypotheses, embedding] -> attended [hypotheses, embedding], copies, the state after this token.

        Attention takes the hypotheses of a row for target positions, so that no hypothesis needs a copy of the memory.
        """
        outputs, cells = self.stack.step(embedded, state["cells"])  # [hypotheses, units]
        if self.attention is not None:
            of_rows = tf.reshape(outputs, [tf.shape(state["memory"])[0], -1, outputs.shape[-1]])  # [rows, beams, units]
            context = self.attention(of_rows, state["keys"], state["memory"], state["mask"])
            outputs = tf.concat([outputs, tf.reshape(context, tf.shape(outputs))], axis=-1)  # [hypotheses, 2 units]
            if "attention" in state:
                weights = self.attention.weights_of(of_rows, state["keys"], state["mask"])
                state = {**state, "attention": tf.reshape(weights, tf.shape(state["attention"]))}
        copies: Copies | tuple[()] = NO_COPIES
        if self.copying is not None:
            weights = self.copying.weights_of(of_rows, state["copy_keys"], state["mask"])  # [rows, beams, source]
            of_hypotheses = tf.reshape(weights, [-1, tf.shape(weights)[2]])
            copies = Copies(self.copying.log_actions(outputs), of_hypotheses)
        return self.combined(outputs), copies, {**state, "cells": cells}

    def combined(self, outputs: tf.Tensor) -> tf.Tensor:
        """outputs [rows, units or 2 units] -> attended [rows, embedding]."""
        return tf.tanh(matmul(outputs, tf.convert_to_tensor(self.combine.kernel), self._precision))
