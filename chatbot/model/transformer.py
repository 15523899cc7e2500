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
from chatbot.model.operations import matmul, size_on_device
from chatbot.model.recurrent import DECODER, FORWARD_ENCODER, Dropout, is_packed
from chatbot.model.sequences import Packing, Sequences, pack, unpack

EPSILON = 1e-6
# The longest wave of the positions, in tokens.
LONGEST_WAVE = 10_000.0


class Normalisation(keras.layers.Layer):
    """Vectors with mean 0 and variance 1, times a gain, plus a shift (Ba et al., 2016)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gain = self.add_weight(shape=(size,), initializer="ones", name="gain")
        self.shift = self.add_weight(shape=(size,), initializer="zeros", name="shift")
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[..., size] -> the same shape."""

        @tf.custom_gradient
        def run(x: tf.Tensor, gain: tf.Tensor, shift: tf.Tensor) -> tuple[tf.Tensor, Any]:
            centred = x - tf.reduce_mean(x, -1, keepdims=True)
            rate = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + EPSILON)
            normal = centred * rate

            def gradient(d_result: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
                others = [*range(len(x.shape) - 1)]
                d_gain, d_shift = tf.reduce_sum(d_result * normal, others), tf.reduce_sum(d_result, others)
                d_normal = d_result * gain
                parallel = normal * tf.reduce_mean(d_normal * normal, -1, keepdims=True)
                d_centred = d_normal - tf.reduce_mean(d_normal, -1, keepdims=True) - parallel
                return d_centred * rate, d_gain, d_shift

            return normal * gain + shift, gradient

        return run(x, tf.convert_to_tensor(self.gain), tf.convert_to_tensor(self.shift))


class Product(keras.layers.Layer):
    """x W + b, of vectors in any layout.

    Queries, keys and values have no bias b. That of keys would change no weight of the attention, so that its gradient
    would be rounding error, which Adam scales up to a whole step, different on each number of towers.
    """

    def __init__(self, inputs: int, outputs: int, precision: str, *, flat: bool, bias: bool = True) -> None:
        """flat: multiply all vectors as one matrix, faster, but ONNX's converter mistakes the shapes of reshapes."""
        super().__init__()
        self.kernel = self.add_weight(shape=(inputs, outputs), initializer="zeros", name="kernel")
        self.bias = self.add_weight(shape=(outputs,), initializer="zeros", name="bias") if bias else None
        self._sizes, self._precision, self._flat = (inputs, outputs), precision, flat
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[..., inputs] -> [..., outputs]."""
        inputs, outputs = self._sizes
        flat = self._flat and len(x.shape) > 2
        factor = tf.reshape(x, [-1, inputs]) if flat else x
        product = matmul(factor, tf.convert_to_tensor(self.kernel), self._precision)
        if self.bias is not None:
            product = tf.nn.bias_add(product, tf.convert_to_tensor(self.bias))
        return tf.reshape(product, tf.concat([tf.shape(x)[:-1], [outputs]], 0)) if flat else product


class FeedForward(keras.layers.Layer):
    """Normalisation -> product -> SiLU -> product."""

    def __init__(self, settings: ModelSettings, precision: str) -> None:
        super().__init__()
        size, hidden, flat = settings.embedding_size, settings.feed_forward_size, not settings.plain_layers
        self.normalise = Normalisation(size)
        self.widen = Product(size, hidden, precision, flat=flat)
        self.narrow = Product(hidden, size, precision, flat=flat)
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[..., embedding] -> the same shape."""
        # Rounding turns single units of a ReLU on or off, and Adam makes whole steps of that: towers would drift apart.
        return self.narrow(tf.nn.silu(self.widen(self.normalise(x))))


class SelfAttention(keras.layers.Layer):
    """Normalisation -> queries, keys and values -> attention over other positions of the sequence -> product."""

    def __init__(self, settings: ModelSettings, precision: str) -> None:
        super().__init__()
        size, flat = settings.embedding_size, not settings.plain_layers
        self.normalise = Normalisation(size)
        self.project = Product(size, 3 * size, precision, flat=flat, bias=False)
        self.combine = Product(size, size, precision, flat=flat)
        self._heads, self._precision, self._size = settings.heads, precision, size
        self.built = True

    def call(self, x: tf.Tensor, mask: tf.Tensor, packing: Packing | None) -> tf.Tensor:
        """[tokens, embedding] or [rows, time, embedding] -> the same shape.

        mask: of the positions that each one sees, broadcast to [rows, time, time], bool. packing: of packed tokens;
        None: x is padded.
        """
        projected = self.project(self.normalise(x))
        padded = projected if packing is None else unpacked(projected, packing)
        means = multi_head(tf.split(padded, 3, -1), mask, self._heads, self._precision)
        return self.combine(means if packing is None else pack(means, packing))

    def step(self, x: tf.Tensor, cache: tf.Tensor, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Compute one position: [hypotheses, embedding] -> the same shape, and the cache with its key and value.

        cache: [hypotheses, positions, 2 embedding], keys and values. position: [hypotheses] float32.
        """
        query, new = tf.split(self.project(self.normalise(x)), [self._size, 2 * self._size], -1)
        places = tf.constant(np.arange(cache.shape[1], dtype=np.float32))[None]  # [1, positions]
        cache = tf.where((places == position[:, None])[..., None], new[:, None], cache)
        mask = (places <= position[:, None])[:, None]  # [hypotheses, 1, positions]
        queries = tf.reshape(query, [-1, self._heads, 1, self._size // self._heads])
        keys, values = (_of_heads(x, self._heads, tf.shape(cache)[0]) for x in tf.split(cache, 2, -1))
        means = matmul(weights_of_heads(queries, keys, mask, self._precision), values, self._precision)
        return self.combine(tf.reshape(means, [-1, self._size])), cache


class CrossAttention(keras.layers.Layer):
    """Attention of a reply's positions over the question, in each layer of the decoder."""

    def __init__(self, settings: ModelSettings, precision: str) -> None:
        super().__init__()
        size, layers, flat = settings.embedding_size, range(settings.num_layers), not settings.plain_layers
        self.normalise = [Normalisation(size) for _ in layers]
        self.project = [Product(size, size, precision, flat=flat, bias=False) for _ in layers]
        self.key_values = Product(size, len(layers) * 2 * size, precision, flat=flat, bias=False)
        self.combine = [Product(size, size, precision, flat=flat) for _ in layers]
        self._heads, self._precision = settings.heads, precision
        self.by_step = False  # as of `chatbot.model.attention.Attention`
        self.built = True

    def keys(self, memory: tf.Tensor) -> tf.Tensor:
        """memory [rows, source, embedding] -> keys and values of all layers [rows, source, layers * 2 embedding]."""
        return self.key_values(memory)

    def of_layers(self, keys: tf.Tensor) -> list[tf.Tensor]:
        """keys: from `keys` -> keys, then values, of each layer in turn, [rows, source, embedding] each."""
        return tf.split(keys, 2 * len(self.project), -1)

    def queries(self, number: int, x: tf.Tensor) -> tf.Tensor:
        """[..., embedding] -> the same shape. number: of the layer, from 0."""
        return self.project[number](self.normalise[number](x))

    def means(self, number: int, queries: tf.Tensor, keys: list[tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
        """queries [rows, target, embedding] or [rows * target, embedding] -> means of the values, in the first shape.

        number: of the layer. keys: from `of_layers`. mask: [rows, source] bool, True at real tokens.
        """
        factors = [queries, *keys[2 * number : 2 * number + 2]]
        return multi_head(factors, mask[:, None], self._heads, self._precision)

    def weights_of(self, queries: tf.Tensor, keys: list[tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
        """Return the weights of the last layer, the mean of its heads, [rows, target, source].

        The arguments are those of `means`.
        """
        rows = tf.shape(mask)[0]
        of_last, of_heads = (_of_heads(x, self._heads, rows) for x in (keys[-2], queries))
        return tf.reduce_mean(weights_of_heads(of_heads, of_last, mask[:, None], self._precision), 1)


class TransformerEncoder(keras.layers.Layer):
    """Layers of attention over the question, in both directions, and of products."""

    def __init__(self, settings: ModelSettings, precision: str = "float32") -> None:
        super().__init__()
        layers = range(settings.num_layers)
        self.attentions = [SelfAttention(settings, precision) for _ in layers]
        self.feed_forwards = [FeedForward(settings, precision) for _ in layers]
        self.normalise = Normalisation(settings.embedding_size)
        self.dropouts = [Dropout(settings.keep_prob, FORWARD_ENCODER + i) for i in range(1 + 2 * len(layers))]
        self._settings = settings
        self.built = True

    def call(self, embedded: tf.Tensor, sequences: Sequences, key: tf.Tensor | None) -> tuple[tf.Tensor, list[Any]]:
        """embedded [tokens or rows, source, embedding] -> memory [rows, source, embedding], no states.

        embedded: in the layout of `is_packed`. key: [1] uint64 draws the dropout masks; None: no dropout.
        """
        packing = sequences.packing if is_packed(self._settings) else None
        x = self.dropouts[0](with_positions(embedded, packing), key)
        dropouts = iter(self.dropouts[1:])
        for attention, feed_forward in zip(self.attentions, self.feed_forwards, strict=True):
            x = x + next(dropouts)(attention(x, sequences.mask[:, None], packing), key)
            x = x + next(dropouts)(feed_forward(x), key)
        memory = self.normalise(x)
        return memory if packing is None else unpacked(memory, packing), []


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
        self.dropouts = [Dropout(settings.keep_prob, DECODER + i) for i in range(1 + 3 * len(layers))]
        self._settings = settings
        self.built = True

    @property
    def shows_attention(self) -> bool:
        """Whether there are `attention_weights`."""
        return True

    @property
    def cell_structure(self) -> Any:
        """The structure of the state's "cells": the cache of each layer, and the position of the next token."""
        return [[0] * self._settings.num_layers, [0]]

    def start(self, memory: tf.Tensor, mask: tf.Tensor, states: list[Any]) -> DecoderState:
        """Return the state before the first token; see `chatbot.model.decoder.Decoder.start`."""
        assert not states
        rows, size = tf.shape(memory)[0], self._settings.embedding_size
        cache = tf.zeros([rows, self._settings.max_length + 1, 2 * size], memory.dtype)
        cells = [[cache] * self._settings.num_layers, [tf.zeros([rows])]]
        state = {"cells": cells, "keys": self.attention.keys(memory), "mask": mask}
        return state if self.copying is None else {**state, "copy_keys": self.copying.keys(memory)}

    def call(
        self, embedded: tf.Tensor, sequences: Sequences, state: DecoderState, key: tf.Tensor | None
    ) -> tuple[tf.Tensor, Copies | tuple[()]]:
        """embedded [tokens, embedding] or [rows, target, embedding] -> attended [tokens, embedding], packed; copies.

        This is teacher forcing. embedded: in the layout of `is_packed`. key: [1] uint64 draws the dropout masks; None:
        no dropout.
        """
        x, means, _ = self._sums(embedded, sequences, state, key)
        attended, packing = self.normalise(x), sequences.packing
        packed = is_packed(self._settings)
        copies: Copies | tuple[()] = NO_COPIES
        if self.copying is not None:
            padded = unpacked(attended, packing) if packed else attended
            weights = self.copying.weights_of(padded, state["copy_keys"], state["mask"])  # [rows, target, source]
            of_gate = tf.concat([attended, means], -1)
            log_actions = self.copying.log_actions(of_gate if packed else pack(of_gate, packing))
            copies = Copies(log_actions, pack(weights, packing))
        return attended if packed else pack(attended, packing), copies

    def attention_weights(self, embedded: tf.Tensor, sequences: Sequences, state: DecoderState) -> tf.Tensor:
        """Return the weights of the question's tokens in the last layer, [rows, target, source], without dropout."""
        _, _, queries = self._sums(embedded, sequences, state, None)
        return self.attention.weights_of(queries, self.attention.of_layers(state["keys"]), state["mask"])

    def _sums(
        self, embedded: tf.Tensor, sequences: Sequences, state: DecoderState, key: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the sums after the last layer, and the means of its cross attention, in the layout of `is_packed`.

        Also its queries, [rows, target, embedding]. The arguments are those of `call`.
        """
        packing = sequences.packing if is_packed(self._settings) else None
        x = self.dropouts[0](with_positions(embedded, packing), key)
        time = places_of(sequences.packing.to_padded[0])
        before = (time[None] <= time[:, None])[None]  # [1, target, target]
        dropouts, keys = iter(self.dropouts[1:]), self.attention.of_layers(state["keys"])
        for i, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            x = x + next(dropouts)(attention(x, before, packing), key)
            queries = self.attention.queries(i, x)
            queries = queries if packing is None else unpacked(queries, packing)
            means = self.attention.means(i, queries, keys, state["mask"])
            means = means if packing is None else pack(means, packing)
            x = x + next(dropouts)(self.attention.combine[i](means), key)
            x = x + next(dropouts)(feed_forward(x), key)
        return x, means, queries

    def step(self, embedded: tf.Tensor, state: DecoderState) -> tuple[tf.Tensor, Copies | tuple[()], DecoderState]:
        """embedded [hypotheses, embedding] -> attended [hypotheses, embedding], copies, the state after this token.

        The keys and values of the tokens before are in the cache, so that none is computed again.
        """
        caches, (position,) = state["cells"]
        rows = tf.shape(state["mask"])[0]

        def of_rows(x: tf.Tensor) -> tf.Tensor:
            return tf.reshape(x, [rows, -1, x.shape[-1]])  # [rows, beams, embedding]

        x = embedded * self._scale + waves(position, self._settings.embedding_size)
        after: list[tf.Tensor] = []
        keys = self.attention.of_layers(state["keys"])
        for i, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            added, cache = attention.step(x, caches[i], position)
            x, after = x + added, [*after, cache]
            queries = self.attention.queries(i, x)
            means = tf.reshape(self.attention.means(i, queries, keys, state["mask"]), tf.shape(x))
            x = x + self.attention.combine[i](means)
            x = x + feed_forward(x)
        attended, state = self.normalise(x), {**state, "cells": [after, [position + 1]]}
        if "attention_sums" in state:
            weights = self.attention.weights_of(queries, keys, state["mask"])
            sums = state["attention_sums"]
            state["attention_sums"] = sums + tf.reshape(weights, tf.shape(sums))
        if self.copying is None:
            return attended, NO_COPIES, state
        weights = self.copying.weights_of(of_rows(attended), state["copy_keys"], state["mask"])
        log_actions = self.copying.log_actions(tf.concat([attended, means], -1))
        return attended, Copies(log_actions, tf.reshape(weights, [-1, tf.shape(weights)[2]])), state

    @property
    def _scale(self) -> float:
        return self._settings.embedding_size**0.5


def multi_head(factors: Sequence[tf.Tensor], mask: tf.Tensor, heads: int, precision: str) -> tf.Tensor:
    """Return the means of the values by softmax(queries keys / sqrt(size)) in each head, [rows, target, size].

    factors: queries [rows, target, size] or [rows * target, size], keys and values [rows, source, size]. mask: bool,
    broadcast to [rows, target, source]. The gradient is written out, as in `weighted_means` of recurrent models.
    """
    scale = (factors[0].shape[-1] // heads) ** -0.5

    @tf.custom_gradient
    def run(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, Any]:
        weights = weights_of_heads(queries, keys, mask, precision)

        def gradient(d_means: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            d_weights = matmul(d_means, values, precision, transpose_b=True) * weights
            d_scores = (d_weights - weights * tf.reduce_sum(d_weights, -1, keepdims=True)) * scale
            d_queries = matmul(d_scores, keys, precision)
            d_keys = matmul(d_scores, queries, precision, transpose_a=True)
            return d_queries, d_keys, matmul(weights, d_means, precision, transpose_a=True)

        return matmul(weights, values, precision), gradient

    rows = tf.shape(factors[1])[0]
    means = tf.transpose(run(*(_of_heads(x, heads, rows) for x in factors)), [0, 2, 1, 3])
    return tf.reshape(means, [rows, -1, factors[0].shape[-1]])


def weights_of_heads(queries: tf.Tensor, keys: tf.Tensor, mask: tf.Tensor, precision: str) -> tf.Tensor:
    """Return the weights of each head, [rows, heads, target, source].

    queries: [rows, heads, target, part]. keys: [rows, heads, source, part]. mask: as in `multi_head`.
    """
    scores = matmul(queries, keys, precision, transpose_b=True) * queries.shape[-1] ** -0.5
    return tf.nn.softmax(tf.where(mask[:, None], scores, tf.constant(scores.dtype.min, scores.dtype)))


def _of_heads(x: tf.Tensor, heads: int, rows: tf.Tensor) -> tf.Tensor:
    """[rows, time, size], or [rows * time, size] -> [rows, heads, time, size / heads]. rows: scalar int32.

    It is one reshape, since the converter to ONNX mistakes the shapes of several in a row.
    """
    return tf.transpose(tf.reshape(x, [rows, -1, heads, x.shape[-1] // heads]), [0, 2, 1, 3])


def unpacked(packed: tf.Tensor, packing: Packing) -> tf.Tensor:
    """`unpack`, by whose gradient fillers have 0: [tokens, features] -> [rows, time, features], 0 at padding."""
    tokens = tf.shape(packed)[0]
    is_real = tf.cast(tf.range(tokens) < tokens - packing.fillers, packed.dtype)
    return unpack(packed * is_real[:, None], packing)


def with_positions(embedded: tf.Tensor, packing: Packing | None) -> tf.Tensor:
    """Return embeddings, scaled, with the waves of their positions. The arguments are those of `SelfAttention`."""
    size = embedded.shape[-1]
    of_time = waves(places_of(embedded[0, :, 0] if packing is None else packing.to_padded[0]), size)
    if packing is not None:
        of_time = tf.gather(of_time, packing.to_packed % size_on_device(packing.to_padded[0]))
    return embedded * size**0.5 + of_time


def places_of(vector: tf.Tensor) -> tf.Tensor:
    """Return 0, 1, 2 and so on for the elements of a vector, float32, computed on its device, where tf.range is not."""
    return tf.cumsum(tf.ones_like(vector, tf.float32), exclusive=True)


def waves(positions: tf.Tensor, size: int) -> tf.Tensor:
    """Return sines and cosines of positions, [positions, size], with wavelengths from 2 pi to LONGEST_WAVE times that.

    positions: [positions] float32. size: even.
    """
    rates = LONGEST_WAVE ** -(np.arange(size // 2, dtype=np.float32) / (size // 2))
    angles = positions[:, None] * tf.constant(rates.astype(np.float32))
    return tf.concat([tf.sin(angles), tf.cos(angles)], -1)
