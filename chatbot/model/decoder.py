"""The decoder: a recurrent stack whose outputs look back at the question before they name a token.

Attention follows the recurrent layers (Luong et al., 2015, without input feeding), so that
training runs them over the whole reply at once, on cuDNN's path where there is a GPU.
"""

from typing import Any

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.attention import BahdanauAttention, LuongAttention
from chatbot.model.dropout import Dropout
from chatbot.model.packing import pack, packing
from chatbot.model.product import policy
from chatbot.model.recurrent import Stack, State

# What decoding carries from step to step, each tensor [rows, ...]: "cells" changes, the rest is the question.
DecoderState = dict[str, Any]


class Decoder(keras.layers.Layer):
    """Recurrent stack -> attention -> attended, tanh(W [output; context])."""

    def __init__(self, settings: ModelSettings, precision: str = "float32") -> None:
        super().__init__()
        units = settings.rnn_size
        kinds: dict[str, type[LuongAttention | BahdanauAttention]] = {
            "luong": LuongAttention,
            "bahdanau": BahdanauAttention,
        }
        self.stack = Stack(settings, settings.embedding_size, units, 300, precision)
        self.attention = kinds[settings.attention](units, precision) if settings.attention in kinds else None
        self.combine = keras.layers.Dense(settings.embedding_size, use_bias=False, dtype=policy(precision))
        self.combine.build((None, units if self.attention is None else 2 * units))
        self.dropout = Dropout(settings.keep_prob, 400)
        self.built = True

    def start(self, memory: tf.Tensor, mask: tf.Tensor, states: list[State]) -> DecoderState:
        """The state before the first token."""
        keys = memory if self.attention is None else self.attention.keys(memory)
        return {"cells": states, "memory": memory, "keys": keys, "mask": mask}

    def call(self, embedded: tf.Tensor, mask: tf.Tensor, state: DecoderState, seed: tf.Tensor | None) -> tf.Tensor:
        """embedded [rows, target, embedding] -> attended [tokens, embedding], packed, with teacher forcing.

        mask [rows, target]: True at the real tokens.
        """
        outputs, _ = self.stack(embedded, state["cells"], mask, seed, last=False)
        return self.dropout(self.combined(pack(self.with_context(outputs, state), packing(mask))), seed)

    def step(self, embedded: tf.Tensor, state: DecoderState) -> tuple[tf.Tensor, DecoderState]:
        """embedded [rows, embedding] -> attended [rows, embedding], the state after this token."""
        output, cells = self.stack.step(embedded, state["cells"])
        attended = self.combined(self.with_context(output[:, None, :], state))  # [rows, 1, embedding]
        return attended[:, 0], {**state, "cells": cells}

    def with_context(self, outputs: tf.Tensor, state: DecoderState) -> tf.Tensor:
        """outputs [rows, target, units] -> [rows, target, 2 units], or as it was without attention."""
        if self.attention is None:
            return outputs
        context, _ = self.attention(outputs, state["keys"], state["memory"], state["mask"])
        return tf.concat([outputs, context], axis=-1)

    def combined(self, outputs: tf.Tensor) -> tf.Tensor:
        """[..., units or 2 units] -> [..., embedding]."""
        return tf.tanh(tf.cast(self.combine(outputs), outputs.dtype))
