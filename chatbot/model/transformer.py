"""The Transformer encoder and decoder of `Seq2Seq` (Vaswani et al., 2017).

By default, each sublayer computes x + dropout(sublayer(normalise(x))), and another normalisation follows the last layer
(pre-norm, Xiong et al., 2020). `settings.form` describes other variants. x is called the residual stream.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from chatbot.config.form import Form
from chatbot.config.model import ModelSettings
from chatbot.model.attention import (
    VectorLayout,
    additive_mask,
    attention_weights,
    join_heads,
    multi_head_attention,
    padded_layout,
    padding_mask,
    split_heads,
    to_rows,
    vector_layout,
)
from chatbot.model.copying import NO_COPIES, Copies, Copying
from chatbot.model.decoder import DecoderState
from chatbot.model.operations import concat_features
from chatbot.model.recurrent import DECODER, FORWARD_ENCODER, Dropout, apply_mask
from chatbot.model.sequences import Sequences, pack
from chatbot.model.transformer_parts import FeedForward, Linear, Normalisation, Positions


class SelfAttention(keras.layers.Layer):
    """Multi-head self-attention, including the projections of its inputs and outputs."""

    def __init__(self, settings: ModelSettings, form: Form, precision: str) -> None:
        super().__init__()
        size = settings.embedding_size
        inner_size = settings.heads * settings.head_size
        self.normalise = Normalisation(size, form)
        self.project = Linear(size, 3 * inner_size, precision, parts=3, bias=form.attention_biases, keys=[1])
        self.combine = Linear(inner_size, size, precision, bias=form.biases)
        self._heads = settings.heads
        self._precision = precision
        self._scale = settings.score_scale
        self.built = True

    def call(
        self,
        x: tf.Tensor,
        mask: tf.Tensor,
        position_bias: Sequence[tf.Tensor],
        layout: VectorLayout,
        cache: Sequence[tf.Tensor] = (),
    ) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Map the residual stream to the sublayer's output.

        Args:
            x: The residual stream, [vectors, embedding].
            mask: The `additive_mask` of the visible positions, which is broadcast to [rows, heads, time, positions].
            position_bias: The result of `Positions.bias`.
            layout: The layout of the vectors.
            cache: When decoding token by token, the keys and values of the earlier positions,
                [rows, heads, positions, head_size] each.

        Returns:
            The sublayer's output, [vectors, embedding], and the keys and values of all positions.
        """
        queries, *new = split_heads(self.project(self.normalise.before(x)), 3, self._heads, layout)
        if cache:
            new = [tf.concat([before, now], 2) for before, now in zip(cache, new, strict=True)]
        context = multi_head_attention([queries, *new, *position_bias], mask, self._precision, self._scale)
        return self.combine(join_heads(context, layout)), new


class CrossAttention(keras.layers.Layer):
    """Multi-head attention from replies to questions. One object computes it for all layers of the decoder."""

    def __init__(self, settings: ModelSettings, form: Form, precision: str) -> None:
        super().__init__()
        size = settings.embedding_size
        layers = range(settings.decoder_layers)
        inner_size = settings.heads * settings.head_size
        bias = form.attention_biases
        self.normalise = [Normalisation(size, form) for _ in layers]
        self.project = [Linear(size, inner_size, precision, bias=bias) for _ in layers]
        parts = 2 * len(layers)
        keys = range(0, parts, 2)
        self.key_values = Linear(size, parts * inner_size, precision, parts=parts, bias=bias, keys=keys)
        self.combine = [Linear(inner_size, size, precision, bias=form.biases) for _ in layers]
        self._heads = settings.heads
        self._precision = precision
        self._scale = settings.score_scale
        self.built = True

    def keys(self, memory: tf.Tensor) -> tf.Tensor:
        """Project the encoder's outputs to the keys and values of all layers.

        Args:
            memory: The encoder's outputs, [rows, source, embedding].

        Returns:
            The keys and values, [rows, source, layers * 2 * heads * head_size].
        """
        products = self.key_values(tf.reshape(memory, [-1, memory.shape[-1]]))
        return tf.reshape(products, tf.concat([tf.shape(memory)[:2], [products.shape[-1]]], 0))

    def split_keys(self, keys: tf.Tensor, mask: tf.Tensor) -> list[tf.Tensor]:
        """Split the result of `keys` into layers and heads.

        Args:
            keys: The result of `keys`.
            mask: A tensor with shape [rows, source]. Only its shape is used.

        Returns:
            The keys and the values of the first layer, then of the second layer, and so on. Each tensor has shape
            [rows, heads, source, head_size].
        """
        flat = tf.reshape(keys, [-1, keys.shape[-1]])
        return split_heads(flat, 2 * len(self.project), self._heads, padded_layout(mask))

    def queries(self, layer: int, x: tf.Tensor, layout: VectorLayout) -> tf.Tensor:
        """Project the residual stream [vectors, embedding] to a layer's queries, [rows, heads, target, head_size]."""
        (queries,) = split_heads(self.project[layer](self.normalise[layer].before(x)), 1, self._heads, layout)
        return queries

    def context(
        self, queries: tf.Tensor, keys: Sequence[tf.Tensor], mask: tf.Tensor, layout: VectorLayout
    ) -> tf.Tensor:
        """Return the context of each query.

        Args:
            queries: The result of `queries`.
            keys: The keys and the values of the layer, from `split_keys`.
            mask: The `additive_mask` of the question, [rows, 1, 1, source].
            layout: The layout of the vectors.

        Returns:
            The contexts, [vectors, heads * head_size].
        """
        return join_heads(multi_head_attention([queries, *keys], mask, self._precision, self._scale), layout)

    def mean_weights(self, queries: tf.Tensor, keys: list[tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
        """Return the attention weights of the last layer, averaged over its heads, [rows, target, source].

        Args:
            queries: The queries of the last layer.
            keys: The result of `split_keys`.
            mask: The `additive_mask` of the question, [rows, 1, 1, source].
        """
        return tf.reduce_mean(attention_weights(queries, keys[-2], mask, self._precision, self._scale), 1)


class TransformerEncoder(keras.layers.Layer):
    """The Transformer encoder. Each layer has bidirectional self-attention and a feed-forward sublayer."""

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
        self.built = True

    def call(self, embedded: tf.Tensor, sequences: Sequences, key: tf.Tensor | None) -> tuple[tf.Tensor, list[Any]]:
        """Encode questions; see `Encoder.call`. The list of recurrent states is empty."""
        layout = vector_layout(sequences)
        x = self.dropout(self.positions(embedded, layout), key)  # [vectors, embedding]
        mask = padding_mask(sequences.mask)  # [rows, 1, 1, source]
        position_bias = self.positions.bias(layout.positions[None, :, None], layout.positions)
        for i, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            layer: Callable[..., Any] = functools.partial(self._layer, i, key, mask, layout)
            if self._settings.recompute_activations:
                layer = recompute(layer, [attention, feed_forward])
            x = layer(x, *position_bias)
        return to_rows(x if self.normalise is None else self.normalise(x), layout), []

    def _layer(
        self,
        number: int,
        key: tf.Tensor | None,
        mask: tf.Tensor,
        layout: VectorLayout,
        x: tf.Tensor,
        *position_bias: tf.Tensor,
    ) -> tf.Tensor:
        """Compute one layer, and return the new residual stream."""
        dropout_masks = self.dropouts[number].draw_masks(2 * [x.shape[-1]], x, key)
        attention = self.attentions[number]
        feed_forward = self.feed_forwards[number]
        y, _ = attention(x, mask, position_bias, layout)
        x = attention.normalise.after(x, apply_mask(y, dropout_masks[0]))
        return feed_forward.normalise.after(x, apply_mask(feed_forward(x), dropout_masks[1]))


class TransformerDecoder(keras.layers.Layer):
    """The Transformer decoder. Each layer has causal self-attention, cross-attention and a feed-forward sublayer."""

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
        """The structure of "cells" in the state: keys and values of each layer, and the position of the next token."""
        return [[[0, 0]] * self._settings.decoder_layers, [0]]

    def start(self, memory: tf.Tensor, mask: tf.Tensor, states: list[Any]) -> DecoderState:
        """Return the state before the first token; see `Decoder.start`."""
        assert not states
        rows = tf.shape(memory)[0]
        settings = self._settings
        # The caches are empty. Their size 0 is computed, because graphs would treat a literal 0 as a constant.
        cache = tf.zeros([rows, settings.heads, rows - rows, settings.head_size], memory.dtype)
        cells = [[[cache, cache]] * settings.decoder_layers, [tf.zeros([rows])]]
        state = {"cells": cells, "keys": self.attention.keys(memory), "mask": mask}
        return state if self.copying is None else {**state, "copy_keys": self.copying.keys(memory)}

    def call(
        self, embedded: tf.Tensor, sequences: Sequences, state: DecoderState, key: tf.Tensor | None
    ) -> tuple[tf.Tensor, Copies | tuple[()]]:
        """Decode whole replies with teacher forcing; see `Decoder.call`."""
        layout = vector_layout(sequences)
        x, context, _ = self._run_layers(embedded, layout, state, key)
        attended = self._output(x)  # [vectors, embedding]

        def to_tokens(vectors: tf.Tensor) -> tf.Tensor:
            return vectors if sequences.is_packed else pack(to_rows(vectors, layout), sequences.packing)

        copies: Copies | tuple[()] = NO_COPIES
        if self.copying is not None:
            weights = self.copying.compute_weights(  # [rows, target, source]
                to_rows(attended, layout), state["copy_keys"], state["mask"]
            )
            log_actions = self.copying.log_actions(to_tokens(concat_features(attended, context)))
            copies = Copies(log_actions, pack(weights, sequences.packing))
        return to_tokens(attended), copies

    def attention_weights(self, embedded: tf.Tensor, sequences: Sequences, state: DecoderState) -> tf.Tensor:
        """Return the attention weights to the question in the last layer; see `Decoder.attention_weights`."""
        layout = vector_layout(sequences)
        _, _, queries = self._run_layers(embedded, layout, state, None)
        keys = self.attention.split_keys(state["keys"], state["mask"])
        return self.attention.mean_weights(queries, keys, padding_mask(state["mask"]))

    def _output(self, x: tf.Tensor) -> tf.Tensor:
        """Convert the residual stream after the last layer to the outputs of the decoder."""
        x = x if self.normalise is None else self.normalise(x)
        return x * self._settings.embedding_size**-0.5 if self._form.scaled_output else x

    def _run_layers(
        self, embedded: tf.Tensor, layout: VectorLayout, state: DecoderState, key: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the residual stream after the last layer, and that layer's contexts and queries for the question."""
        x = self.dropout(self.positions(embedded, layout), key)  # [vectors, embedding]
        cross = self.attention
        causal_mask = additive_mask(layout.positions <= tf.expand_dims(layout.positions, 1))  # [target, target]
        question_mask = padding_mask(state["mask"])  # [rows, 1, 1, source]
        position_bias = self.positions.bias(layout.positions[None, :, None], layout.positions)
        keys = cross.split_keys(state["keys"], state["mask"])
        for i, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            layer: Callable[..., Any] = functools.partial(self._layer, i, key, causal_mask, question_mask, layout)
            if self._settings.recompute_activations:
                parts = [attention, cross.project[i], cross.combine[i], cross.normalise[i], feed_forward]
                layer = recompute(layer, parts)
            x, context, queries = layer(x, *keys[2 * i : 2 * i + 2], *position_bias)
        return x, context, queries

    def _layer(
        self,
        number: int,
        key: tf.Tensor | None,
        causal_mask: tf.Tensor,
        question_mask: tf.Tensor,
        layout: VectorLayout,
        x: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        *position_bias: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Compute one layer, and return the results listed in `_run_layers`. The keys and values are the question's."""
        dropout_masks = self.dropouts[number].draw_masks(3 * [x.shape[-1]], x, key)
        attention = self.attentions[number]
        feed_forward = self.feed_forwards[number]
        y, _ = attention(x, causal_mask, position_bias, layout)
        x = attention.normalise.after(x, apply_mask(y, dropout_masks[0]))
        queries = self.attention.queries(number, x, layout)
        context = self.attention.context(queries, (keys, values), question_mask, layout)
        y = self.attention.combine[number](context)
        x = self.attention.normalise[number].after(x, apply_mask(y, dropout_masks[1]))
        return feed_forward.normalise.after(x, apply_mask(feed_forward(x), dropout_masks[2])), context, queries

    def step(self, embedded: tf.Tensor, state: DecoderState) -> tuple[tf.Tensor, Copies | tuple[()], DecoderState]:
        """Decode one token of each hypothesis; see `Decoder.step`. The keys and values of earlier tokens are cached."""
        caches, (position,) = state["cells"]
        rows = tf.shape(state["mask"])[0]
        by_row = padded_layout(tf.reshape(position, [rows, -1]))  # of [rows, beams]
        by_hypothesis = padded_layout(position[:, None])  # of [hypotheses, 1]
        x = self.positions.step(embedded, position)  # [hypotheses, embedding]
        # The cached positions and the current one, relative to the current one, [positions + 1].
        offsets = tf.cumsum(-tf.ones(tf.shape(caches[0][0])[2:3] + 1), exclusive=True, reverse=True)
        # Mask the unused cache positions of shorter replies.
        mask = additive_mask(position[:, None, None, None] + offsets >= 0)  # [hypotheses, 1, 1, positions + 1]
        position_bias = self.positions.bias(tf.zeros([1, 1, 1]), offsets)
        new_caches: list[Any] = []
        keys = self.attention.split_keys(state["keys"], state["mask"])
        question_mask = padding_mask(state["mask"])  # [rows, 1, 1, source]
        for i, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            y, cache = attention(x, mask, position_bias, by_hypothesis, caches[i])
            new_caches.append(cache)
            x = attention.normalise.after(x, y)
            queries = self.attention.queries(i, x, by_row)
            context = self.attention.context(queries, keys[2 * i : 2 * i + 2], question_mask, by_row)
            x = self.attention.normalise[i].after(x, self.attention.combine[i](context))
            x = feed_forward.normalise.after(x, feed_forward(x))
        attended = self._output(x)
        state = {**state, "cells": [new_caches, [position + 1]]}
        if "attention" in state:
            weights = self.attention.mean_weights(queries, keys, question_mask)  # [rows, beams, source]
            state["attention"] = tf.reshape(weights, tf.shape(state["attention"]))
        if self.copying is None:
            return attended, NO_COPIES, state
        weights = self.copying.compute_weights(to_rows(attended, by_row), state["copy_keys"], state["mask"])
        log_actions = self.copying.log_actions(tf.concat([attended, context], -1))
        return attended, Copies(log_actions, tf.reshape(weights, [-1, tf.shape(weights)[2]])), state


def recompute(layer: Callable[..., Any], parts: Sequence[keras.layers.Layer]) -> Callable[..., Any]:
    """Wrap a layer to recompute its activations in the backward pass, which saves memory (Chen et al., 2016).

    Args:
        layer: The function to wrap. It must be deterministic, so it draws the same dropout masks in both passes.
        parts: The Keras layers that contain all weights of the function.
    """
    variables = [variable for part in parts for variable in part.trainable_variables]

    @tf.recompute_grad
    def run(inputs: Sequence[tf.Tensor], weights: Sequence[tf.Tensor]) -> Any:
        with keras.StatelessScope([*zip(variables, weights, strict=True)]):
            return layer(*inputs)

    return lambda *inputs: run(inputs, [tf.convert_to_tensor(variable) for variable in variables])
