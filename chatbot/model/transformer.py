"""A Transformer (Vaswani et al., 2017): the encoder and decoder of `Seq2Seq` with attention in place of recurrence.

Each part is x + dropout(part(normalise(x))), with a normalisation at the end (pre-norm, Xiong et al., 2020). The
vectors of tokens have the size of the embedding.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.copying import NO_COPIES, Copies, Copying
from chatbot.model.decoder import DecoderState
from chatbot.model.feed_forward import FeedForward, Normalisation, Product
from chatbot.model.multi_head import (
    Layout,
    attended,
    in_rows,
    join_heads,
    layout_of,
    penalties,
    row_by_row,
    split_heads,
    weights_of,
)
from chatbot.model.operations import joined
from chatbot.model.positions import scaled_with, waves, with_positions
from chatbot.model.recurrent import DECODER, FORWARD_ENCODER, Dropout, is_packed, kept
from chatbot.model.sequences import Sequences, pack


class SelfAttention(keras.layers.Layer):
    """Normalisation -> queries, keys and values -> attention over other positions of the sequence -> product."""

    def __init__(self, settings: ModelSettings, precision: str) -> None:
        super().__init__()
        size = settings.embedding_size
        self.normalise = Normalisation(size)
        self.project = Product(size, 3 * size, precision, parts=3, bias=False)
        self.combine = Product(size, size, precision)
        self._heads, self._precision = settings.heads, precision
        self.built = True

    def call(self, x: tf.Tensor, added: tf.Tensor, layout: Layout) -> tf.Tensor:
        """[vectors, embedding] -> the same shape.

        added: `penalties` of the positions that each one sees, broadcast to [rows, heads, time, time].
        """
        factors = split_heads(self.project(self.normalise(x)), 3, self._heads, layout)
        return self.combine(join_heads(attended(factors, added, self._precision), layout))

    def step(
        self, x: tf.Tensor, cache: Sequence[tf.Tensor], position: tf.Tensor
    ) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Compute one position: [hypotheses, embedding] -> the same shape, and the cache with its key and value.

        cache: keys, and values, [hypotheses, heads, positions, embedding / heads] each, so that no step transposes
        them. position: [hypotheses] float32.
        """
        layout = row_by_row(x[:, :1])
        query, *new = split_heads(self.project(self.normalise(x)), 3, self._heads, layout)
        places = tf.constant(np.arange(cache[0].shape[2], dtype=np.float32))
        distances = places - position[:, None, None, None]  # [hypotheses, 1, 1, positions]
        is_here = (distances == 0)[:, :, 0, :, None]
        cache = [tf.where(is_here, now, before) for now, before in zip(new, cache, strict=True)]
        means = attended([query, *cache], penalties(distances <= 0), self._precision)
        return self.combine(join_heads(means, layout)), cache


class CrossAttention(keras.layers.Layer):
    """Attention of a reply's positions over the question, in each layer of the decoder."""

    def __init__(self, settings: ModelSettings, precision: str) -> None:
        super().__init__()
        size, layers = settings.embedding_size, range(settings.num_layers)
        self.normalise = [Normalisation(size) for _ in layers]
        self.project = [Product(size, size, precision, bias=False) for _ in layers]
        parts = 2 * len(layers)
        self.key_values = Product(size, parts * size, precision, parts=parts, bias=False)
        self.combine = [Product(size, size, precision) for _ in layers]
        self._heads, self._precision = settings.heads, precision
        self.by_step = False  # as of `chatbot.model.attention.Attention`
        self.built = True

    def keys(self, memory: tf.Tensor) -> tf.Tensor:
        """memory [rows, source, embedding] -> keys and values of all layers [rows, source, layers * 2 embedding]."""
        products = self.key_values(tf.reshape(memory, [-1, memory.shape[-1]]))
        return tf.reshape(products, tf.concat([tf.shape(memory)[:2], [products.shape[-1]]], 0))

    def of_heads(self, keys: tf.Tensor, mask: tf.Tensor) -> list[tf.Tensor]:
        """keys: from `keys` -> keys, then values, of each layer in turn, [rows, heads, source, embedding / heads].

        mask: [rows, source], any values.
        """
        flat = tf.reshape(keys, [-1, keys.shape[-1]])
        return split_heads(flat, 2 * len(self.project), self._heads, row_by_row(mask))

    def queries(self, number: int, x: tf.Tensor, layout: Layout) -> tf.Tensor:
        """[vectors, embedding] -> [rows, heads, target, embedding / heads]. number: of the layer, from 0."""
        (queries,) = split_heads(self.project[number](self.normalise[number](x)), 1, self._heads, layout)
        return queries

    def means(
        self, number: int, queries: tf.Tensor, keys: list[tf.Tensor], added: tf.Tensor, layout: Layout
    ) -> tf.Tensor:
        """queries: from `queries` -> means of the values, [vectors, embedding].

        number: of the layer, from 0. keys: from `of_heads`. added: `penalties` of the question, [rows, 1, 1, source].
        """
        return join_heads(attended([queries, *keys[2 * number : 2 * number + 2]], added, self._precision), layout)

    def weights_of(self, queries: tf.Tensor, keys: list[tf.Tensor], added: tf.Tensor) -> tf.Tensor:
        """Return the weights of the last layer, the mean of its heads, [rows, target, source].

        queries: of the last layer. The arguments are those of `means`.
        """
        return tf.reduce_mean(weights_of(queries, keys[-2], added, self._precision), 1)


class TransformerEncoder(keras.layers.Layer):
    """Layers of attention over the question, in both directions, and of products."""

    def __init__(self, settings: ModelSettings, precision: str = "float32") -> None:
        super().__init__()
        layers = range(settings.num_layers)
        self.attentions = [SelfAttention(settings, precision) for _ in layers]
        self.feed_forwards = [FeedForward(settings, precision) for _ in layers]
        self.normalise = Normalisation(settings.embedding_size)
        self.dropout = Dropout(settings.keep_prob, FORWARD_ENCODER)
        self._settings = settings
        self.built = True

    def call(self, embedded: tf.Tensor, sequences: Sequences, key: tf.Tensor | None) -> tuple[tf.Tensor, list[Any]]:
        """embedded [tokens or rows, source, embedding] -> memory [rows, source, embedding], no states.

        embedded: in the layout of `is_packed`. key: [1] uint64 draws the dropout masks; None: no dropout.
        """
        layout = layout_of(sequences, is_packed(self._settings))
        x = with_positions(embedded, layout)
        scales = iter(self.dropout.several(1 + 2 * len(self.attentions), x, key))
        x = kept(x, next(scales))
        added = penalties(sequences.mask)[:, None, None]  # [rows, 1, 1, source]
        for attention, feed_forward in zip(self.attentions, self.feed_forwards, strict=True):
            x = sum_of(x, kept(attention(x, added, layout), next(scales)))
            x = sum_of(x, kept(feed_forward(x), next(scales)))
        return in_rows(self.normalise(x), layout), []


class TransformerDecoder(keras.layers.Layer):
    """Layers of attention over the tokens before, of attention over the question, and of products."""

    def __init__(self, settings: ModelSettings, precision: str = "float32") -> None:
        super().__init__()
        layers = range(settings.num_layers)
        self.attentions = [SelfAttention(settings, precision) for _ in layers]
        self.attention = CrossAttention(settings, precision)
        self.feed_forwards = [FeedForward(settings, precision) for _ in layers]
        self.normalise = Normalisation(settings.embedding_size)
        self.copying = Copying(settings.embedding_size, precision) if settings.copy else None
        self.dropout = Dropout(settings.keep_prob, DECODER)
        self._settings = settings
        self.built = True

    @property
    def shows_attention(self) -> bool:
        """Whether there are `attention_weights`."""
        return True

    @property
    def cell_structure(self) -> Any:
        """The structure of the state's "cells": keys and values of each layer, and the position of the next token."""
        return [[[0, 0]] * self._settings.num_layers, [0]]

    def start(self, memory: tf.Tensor, mask: tf.Tensor, states: list[Any]) -> DecoderState:
        """Return the state before the first token; see `chatbot.model.decoder.Decoder.start`."""
        assert not states
        rows, size = tf.shape(memory)[0], self._settings.embedding_size
        heads = self._settings.heads
        cache = tf.zeros([rows, heads, self._settings.max_length + 1, size // heads], memory.dtype)
        cells = [[[cache, cache]] * self._settings.num_layers, [tf.zeros([rows])]]
        state = {"cells": cells, "keys": self.attention.keys(memory), "mask": mask}
        return state if self.copying is None else {**state, "copy_keys": self.copying.keys(memory)}

    def call(
        self, embedded: tf.Tensor, sequences: Sequences, state: DecoderState, key: tf.Tensor | None
    ) -> tuple[tf.Tensor, Copies | tuple[()]]:
        """embedded [tokens, embedding] or [rows, target, embedding] -> attended [tokens, embedding], packed; copies.

        This is teacher forcing. embedded: in the layout of `is_packed`. key: [1] uint64 draws the dropout masks; None:
        no dropout.
        """
        layout = layout_of(sequences, is_packed(self._settings))
        x, means, _ = self._sums(embedded, layout, state, key)
        attended, packed = self.normalise(x), layout.packing is not None

        def packed_of(vectors: tf.Tensor) -> tf.Tensor:
            return vectors if packed else pack(in_rows(vectors, layout), sequences.packing)

        copies: Copies | tuple[()] = NO_COPIES
        if self.copying is not None:
            weights = self.copying.weights_of(in_rows(attended, layout), state["copy_keys"], state["mask"])
            log_actions = self.copying.log_actions(packed_of(joined(attended, means)))
            copies = Copies(log_actions, pack(weights, sequences.packing))  # of [rows, target, source]
        return packed_of(attended), copies

    def attention_weights(self, embedded: tf.Tensor, sequences: Sequences, state: DecoderState) -> tf.Tensor:
        """Return the weights of the question's tokens in the last layer, [rows, target, source], without dropout."""
        layout = layout_of(sequences, is_packed(self._settings))
        _, _, queries = self._sums(embedded, layout, state, None)
        keys = self.attention.of_heads(state["keys"], state["mask"])
        return self.attention.weights_of(queries, keys, penalties(state["mask"])[:, None, None])

    def _sums(
        self, embedded: tf.Tensor, layout: Layout, state: DecoderState, key: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the sums after the last layer, [vectors, embedding], and of its cross attention the means and queries.

        layout: of the sequences. The other arguments are those of `call`.
        """
        x = with_positions(embedded, layout)
        scales = iter(self.dropout.several(1 + 3 * len(self.attentions), x, key))
        x = kept(x, next(scales))
        before = penalties(layout.places[None] <= layout.places[:, None])  # [target, target]
        keys = self.attention.of_heads(state["keys"], state["mask"])
        of_question = penalties(state["mask"])[:, None, None]  # [rows, 1, 1, source]
        for i, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            x = sum_of(x, kept(attention(x, before, layout), next(scales)))
            queries = self.attention.queries(i, x, layout)
            means = self.attention.means(i, queries, keys, of_question, layout)
            x = sum_of(x, kept(self.attention.combine[i](means), next(scales)))
            x = sum_of(x, kept(feed_forward(x), next(scales)))
        return x, means, queries

    def step(self, embedded: tf.Tensor, state: DecoderState) -> tuple[tf.Tensor, Copies | tuple[()], DecoderState]:
        """embedded [hypotheses, embedding] -> attended [hypotheses, embedding], copies, the state after this token.

        The keys and values of the tokens before are in the cache, so that none is computed again.
        """
        caches, (position,) = state["cells"]
        rows = tf.shape(state["mask"])[0]
        by_row = row_by_row(tf.reshape(position, [rows, -1]))  # [rows, beams]
        x = scaled_with(waves(position, self._settings.embedding_size), embedded)
        after: list[Any] = []
        keys = self.attention.of_heads(state["keys"], state["mask"])
        of_question = penalties(state["mask"])[:, None, None]  # [rows, 1, 1, source]
        for i, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            added, cache = attention.step(x, caches[i], position)
            x, after = x + added, [*after, cache]
            queries = self.attention.queries(i, x, by_row)
            means = self.attention.means(i, queries, keys, of_question, by_row)
            x = x + self.attention.combine[i](means)
            x = x + feed_forward(x)
        attended, state = self.normalise(x), {**state, "cells": [after, [position + 1]]}
        if "attention_sums" in state:
            weights, sums = self.attention.weights_of(queries, keys, of_question), state["attention_sums"]
            state["attention_sums"] = sums + tf.reshape(weights, tf.shape(sums))
        if self.copying is None:
            return attended, NO_COPIES, state
        weights = self.copying.weights_of(in_rows(attended, by_row), state["copy_keys"], state["mask"])
        log_actions = self.copying.log_actions(tf.concat([attended, means], -1))
        return attended, Copies(log_actions, tf.reshape(weights, [-1, tf.shape(weights)[2]])), state


def sum_of(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Return x + y, of equal shapes. The gradient of + would compute them."""
    return tf.add_n([x, y])
