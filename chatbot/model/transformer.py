"""A Transformer (Vaswani et al., 2017): the encoder and decoder of `Seq2Seq` with attention in place of recurrence.

Each part is x + dropout(part(normalise(x))), with a normalisation at the end (pre-norm, Xiong et al., 2020), unless
`settings.form` says otherwise. The vectors of tokens have the size of the embedding.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from chatbot.config.form import Form
from chatbot.config.model import ModelSettings
from chatbot.model.attention import (
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
from chatbot.model.copying import NO_COPIES, Copies, Copying
from chatbot.model.decoder import DecoderState
from chatbot.model.operations import joined
from chatbot.model.recurrent import DECODER, FORWARD_ENCODER, Dropout, kept
from chatbot.model.sequences import Sequences, pack
from chatbot.model.transformer_parts import FeedForward, Normalisation, Positions, Product


class SelfAttention(keras.layers.Layer):
    """Queries, keys and values -> attention over other positions of the sequence -> product."""

    def __init__(self, settings: ModelSettings, form: Form, precision: str) -> None:
        super().__init__()
        size = settings.embedding_size
        of_heads = settings.heads * settings.head_size
        self.normalise = Normalisation(size, form)
        self.project = Product(size, 3 * of_heads, precision, parts=3, bias=form.attention_biases, keys=[1])
        self.combine = Product(of_heads, size, precision, bias=form.biases)
        self._form = form
        self._heads = settings.heads
        self._precision = precision
        self._scale = settings.score_scale
        self.built = True

    def call(self, x: tf.Tensor, added: tf.Tensor, learned: Sequence[tf.Tensor], layout: Layout) -> tf.Tensor:
        """[vectors, embedding] -> the same shape.

        added: `penalties` of the positions that each one sees, broadcast to [rows, heads, time, time]. learned:
        `Positions.scores`.
        """
        factors = split_heads(self.project(entering(x, self.normalise, self._form)), 3, self._heads, layout)
        return self.combine(join_heads(attended([*factors, *learned], added, self._precision, self._scale), layout))

    def step(
        self, x: tf.Tensor, cache: Sequence[tf.Tensor], added: tf.Tensor, learned: list[tf.Tensor]
    ) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Compute one position: [hypotheses, embedding] -> the same shape, and the cache with its key and value.

        cache: keys, and values, of the positions before, [hypotheses, heads, positions, embedding / heads] each, so
        that no step transposes them. added: `penalties` of these and of this one, [hypotheses, 1, 1, positions + 1].
        learned: `Positions.scores`.
        """
        layout = row_by_row(x[:, :1])
        query, *new = split_heads(self.project(entering(x, self.normalise, self._form)), 3, self._heads, layout)
        cache = [tf.concat([before, now], 2) for before, now in zip(cache, new, strict=True)]
        means = attended([query, *cache, *learned], added, self._precision, self._scale)
        return self.combine(join_heads(means, layout)), cache


class CrossAttention(keras.layers.Layer):
    """Attention of a reply's positions over the question, in each layer of the decoder."""

    def __init__(self, settings: ModelSettings, form: Form, precision: str) -> None:
        super().__init__()
        size = settings.embedding_size
        layers = range(settings.decoder_layers)
        of_heads = settings.heads * settings.head_size
        bias = form.attention_biases
        self.normalise = [Normalisation(size, form) for _ in layers]
        self.project = [Product(size, of_heads, precision, bias=bias) for _ in layers]
        parts = 2 * len(layers)
        keys = range(0, parts, 2)
        self.key_values = Product(size, parts * of_heads, precision, parts=parts, bias=bias, keys=keys)
        self.combine = [Product(of_heads, size, precision, bias=form.biases) for _ in layers]
        self._form = form
        self._heads = settings.heads
        self._precision = precision
        self._scale = settings.score_scale
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
        entered = entering(x, self.normalise[number], self._form)
        (queries,) = split_heads(self.project[number](entered), 1, self._heads, layout)
        return queries

    def means(self, queries: tf.Tensor, keys: Sequence[tf.Tensor], added: tf.Tensor, layout: Layout) -> tf.Tensor:
        """queries: from `queries` -> means of the values, [vectors, embedding].

        keys: the keys and values of the layer, from `of_heads`. added: `penalties` of the question, [rows, 1, 1,
        source].
        """
        return join_heads(attended([queries, *keys], added, self._precision, self._scale), layout)

    def weights_of(self, queries: tf.Tensor, keys: list[tf.Tensor], added: tf.Tensor) -> tf.Tensor:
        """Return the weights of the last layer, the mean of its heads, [rows, target, source].

        queries: of the last layer. keys: of all layers, from `of_heads`. added: as of `means`.
        """
        return tf.reduce_mean(weights_of(queries, keys[-2], added, self._precision, self._scale), 1)


class TransformerEncoder(keras.layers.Layer):
    """Layers of attention over the question, in both directions, and of products."""

    def __init__(self, settings: ModelSettings, precision: str = "float32") -> None:
        super().__init__()
        layers = range(settings.num_layers)
        form = settings.form or Form()
        self.attentions = [SelfAttention(settings, form, precision) for _ in layers]
        self.feed_forwards = [FeedForward(settings, form, precision) for _ in layers]
        self.normalise = Normalisation(settings.embedding_size, form) if form.norm_first else None
        self.positions = Positions(settings, form, both_directions=True)
        self.dropout = Dropout(settings.keep_prob, FORWARD_ENCODER)
        self.dropouts = [Dropout(settings.keep_prob, FORWARD_ENCODER + 1 + i) for i in layers]
        self._settings = settings
        self._form = form
        self.built = True

    def call(self, embedded: tf.Tensor, sequences: Sequences, key: tf.Tensor | None) -> tuple[tf.Tensor, list[Any]]:
        """embedded [tokens or rows, source, embedding] -> memory [rows, source, embedding], no states.

        embedded: in the layout of the ids. key: [1] uint64 draws the dropout masks; None: no dropout.
        """
        layout = layout_of(sequences)
        x = self.dropout(self.positions(embedded, layout), key)
        added = penalties(sequences.mask)[:, None, None]  # [rows, 1, 1, source]
        learned = self.positions.scores(layout.places[None, :, None], layout.places)
        for i, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            layer: Callable[..., Any] = functools.partial(self._layer, i, key, added, layout)
            if self._settings.recompute_activations:
                layer = recomputed(layer, [attention, feed_forward])
            x = layer(x, *learned)
        return in_rows(x if self.normalise is None else self.normalise(x), layout), []

    def _layer(
        self,
        number: int,
        key: tf.Tensor | None,
        added: tf.Tensor,
        layout: Layout,
        x: tf.Tensor,
        *learned: tf.Tensor,
    ) -> tf.Tensor:
        """Return the sums after a layer. x: the sums before it. learned: see `call`."""
        scales = self.dropouts[number].several(2, x, key)
        attention = self.attentions[number]
        feed_forward = self.feed_forwards[number]
        x = leaving(x, kept(attention(x, added, learned, layout), scales[0]), attention.normalise, self._form)
        return leaving(x, kept(feed_forward(x), scales[1]), feed_forward.normalise, self._form)


class TransformerDecoder(keras.layers.Layer):
    """Layers of attention over the tokens before, of attention over the question, and of products."""

    def __init__(self, settings: ModelSettings, precision: str = "float32") -> None:
        super().__init__()
        layers = range(settings.decoder_layers)
        form = settings.form or Form()
        self.attentions = [SelfAttention(settings, form, precision) for _ in layers]
        self.attention = CrossAttention(settings, form, precision)
        self.feed_forwards = [FeedForward(settings, form, precision) for _ in layers]
        self.normalise = Normalisation(settings.embedding_size, form) if form.norm_first else None
        self.positions = Positions(settings, form, both_directions=False)
        self.copying = Copying(settings.embedding_size, precision) if settings.copy else None
        self.dropout = Dropout(settings.keep_prob, DECODER)
        self.dropouts = [Dropout(settings.keep_prob, DECODER + 1 + i) for i in layers]
        self._settings = settings
        self._form = form
        self.built = True

    @property
    def cell_structure(self) -> Any:
        """The structure of the state's "cells": keys and values of each layer, and the position of the next token."""
        return [[[0, 0]] * self._settings.decoder_layers, [0]]

    def start(self, memory: tf.Tensor, mask: tf.Tensor, states: list[Any]) -> DecoderState:
        """Return the state before the first token; see `chatbot.model.decoder.Decoder.start`."""
        assert not states
        rows = tf.shape(memory)[0]
        settings = self._settings
        # No positions yet, in a size that graphs do not take for a constant.
        cache = tf.zeros([rows, settings.heads, rows - rows, settings.head_size], memory.dtype)
        cells = [[[cache, cache]] * settings.decoder_layers, [tf.zeros([rows])]]
        state = {"cells": cells, "keys": self.attention.keys(memory), "mask": mask}
        return state if self.copying is None else {**state, "copy_keys": self.copying.keys(memory)}

    def call(
        self, embedded: tf.Tensor, sequences: Sequences, state: DecoderState, key: tf.Tensor | None
    ) -> tuple[tf.Tensor, Copies | tuple[()]]:
        """embedded [tokens, embedding] or [rows, target, embedding] -> attended [tokens, embedding], packed; copies.

        This is teacher forcing. embedded: in the layout of the ids. key: [1] uint64 draws the dropout masks; None: no
        dropout.
        """
        layout = layout_of(sequences)
        x, means, _ = self._sums(embedded, layout, state, key)
        attended = self._finished(x)
        packed = layout.packing is not None

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
        layout = layout_of(sequences)
        _, _, queries = self._sums(embedded, layout, state, None)
        keys = self.attention.of_heads(state["keys"], state["mask"])
        return self.attention.weights_of(queries, keys, penalties(state["mask"])[:, None, None])

    def _finished(self, x: tf.Tensor) -> tf.Tensor:
        """Return the outputs of the decoder for the sums after the last layer."""
        x = x if self.normalise is None else self.normalise(x)
        return x * self._settings.embedding_size**-0.5 if self._form.scaled_output else x

    def _sums(
        self, embedded: tf.Tensor, layout: Layout, state: DecoderState, key: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the sums after the last layer, [vectors, embedding], and of its cross attention the means and queries.

        layout: of the sequences. The other arguments are those of `call`.
        """
        x = self.dropout(self.positions(embedded, layout), key)
        cross = self.attention
        before = penalties(layout.places[None] <= layout.places[:, None])  # [target, target]
        of_question = penalties(state["mask"])[:, None, None]  # [rows, 1, 1, source]
        learned = self.positions.scores(layout.places[None, :, None], layout.places)
        keys = cross.of_heads(state["keys"], state["mask"])
        for i, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            layer: Callable[..., Any] = functools.partial(self._layer, i, key, before, of_question, layout)
            if self._settings.recompute_activations:
                parts = [attention, cross.project[i], cross.combine[i], cross.normalise[i], feed_forward]
                layer = recomputed(layer, parts)
            x, means, queries = layer(x, *keys[2 * i : 2 * i + 2], *learned)
        return x, means, queries

    def _layer(
        self,
        number: int,
        key: tf.Tensor | None,
        before: tf.Tensor,
        of_question: tf.Tensor,
        layout: Layout,
        x: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        *learned: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return what `_sums` does, after one layer. x: the sums before it. keys, values: of the question."""
        scales = self.dropouts[number].several(3, x, key)
        attention = self.attentions[number]
        feed_forward = self.feed_forwards[number]
        x = leaving(x, kept(attention(x, before, learned, layout), scales[0]), attention.normalise, self._form)
        queries = self.attention.queries(number, x, layout)
        means = self.attention.means(queries, (keys, values), of_question, layout)
        y = kept(self.attention.combine[number](means), scales[1])
        x = leaving(x, y, self.attention.normalise[number], self._form)
        return leaving(x, kept(feed_forward(x), scales[2]), feed_forward.normalise, self._form), means, queries

    def step(self, embedded: tf.Tensor, state: DecoderState) -> tuple[tf.Tensor, Copies | tuple[()], DecoderState]:
        """embedded [hypotheses, embedding] -> attended [hypotheses, embedding], copies, the state after this token.

        The keys and values of the tokens before are in the cache, so that none is computed again.
        """
        caches, (position,) = state["cells"]
        rows = tf.shape(state["mask"])[0]
        by_row = row_by_row(tf.reshape(position, [rows, -1]))  # [rows, beams]
        x = self.positions.of_places(embedded, position)
        # Of the cached positions and this one, by their distance to it; not tf.range, see `row_by_row`.
        places = tf.cumsum(-tf.ones(tf.shape(caches[0][0])[2:3] + 1), exclusive=True, reverse=True)
        seen = penalties(position[:, None, None, None] + places >= 0)  # a reply may have fewer than others beside it
        learned = self.positions.scores(tf.zeros([1, 1, 1]), places)
        after: list[Any] = []
        keys = self.attention.of_heads(state["keys"], state["mask"])
        of_question = penalties(state["mask"])[:, None, None]  # [rows, 1, 1, source]
        for i, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            y, cache = attention.step(x, caches[i], seen, learned)
            x = leaving(x, y, attention.normalise, self._form)
            after = [*after, cache]
            queries = self.attention.queries(i, x, by_row)
            means = self.attention.means(queries, keys[2 * i : 2 * i + 2], of_question, by_row)
            x = leaving(x, self.attention.combine[i](means), self.attention.normalise[i], self._form)
            x = leaving(x, feed_forward(x), feed_forward.normalise, self._form)
        attended = self._finished(x)
        state = {**state, "cells": [after, [position + 1]]}
        if "attention" in state:
            weights = self.attention.weights_of(queries, keys, of_question)
            state["attention"] = tf.reshape(weights, tf.shape(state["attention"]))
        if self.copying is None:
            return attended, NO_COPIES, state
        weights = self.copying.weights_of(in_rows(attended, by_row), state["copy_keys"], state["mask"])
        log_actions = self.copying.log_actions(tf.concat([attended, means], -1))
        return attended, Copies(log_actions, tf.reshape(weights, [-1, tf.shape(weights)[2]])), state


def recomputed(layer: Callable[..., Any], parts: Sequence[keras.layers.Layer]) -> Callable[..., Any]:
    """Return a function that computes what a layer does, and in the backward pass once more what it has not kept.

    Only the arguments are kept (Chen et al., 2016); the layer draws its dropout masks itself, then again. parts: all
    that has the weights of the layer. Gradients are those of the arguments and of the weights.
    """
    variables = [variable for part in parts for variable in part.trainable_variables]

    @tf.recompute_grad
    def run(inputs: Sequence[tf.Tensor], weights: Sequence[tf.Tensor]) -> Any:
        with keras.StatelessScope([*zip(variables, weights, strict=True)]):
            return layer(*inputs)

    return lambda *inputs: run(inputs, [tf.convert_to_tensor(variable) for variable in variables])


def entering(x: tf.Tensor, normalise: Normalisation, form: Form) -> tf.Tensor:
    """Return what a part of a layer computes with, for the sums x before it."""
    return normalise(x) if form.norm_first else x


def leaving(x: tf.Tensor, y: tf.Tensor, normalise: Normalisation, form: Form) -> tf.Tensor:
    """Return the sums after a part of a layer. y: its result."""
    total = tf.add_n([x, y])  # the gradient of + would compute their shapes
    return total if form.norm_first else normalise(total)
