"""Attention layers: Luong's and Bahdanau's attention for recurrent models, and multi-head attention for Transformers.

The gradients are written by hand. TensorFlow's own gradients are slower, because they compute shapes and transpose the
keys and values again.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from chatbot.model.operations import POLICIES, matmul, to_precision, with_gradient
from chatbot.model.sequences import Packing, Sequences

# Bahdanau attention computes a large intermediate tensor. Up to MAX_ELEMENTS elements, the backward pass reuses it.
# Otherwise, it is computed in chunks, and again in the backward pass. On a CPU, chunks should fit into the cache. On a
# GPU, chunks should be large, so few kernels are launched.
MAX_ELEMENTS = 1 << 22
CHUNK_ELEMENTS = 1 << 20
MAX_ELEMENTS_ON_GPU = 1 << 24


class Attention(keras.layers.Layer):
    """Attention of a recurrent decoder to the encoder's outputs, which are called the memory.

    The context of a query is softmax(score(query, memory)) memory. Subclasses define the score.

    Args:
        units: The size of queries, keys and memory vectors.
        precision: The precision of products; see `chatbot.model.operations`.
    """

    def __init__(self, units: int, precision: str = "float32") -> None:
        super().__init__()
        self.key = keras.layers.Dense(units, use_bias=False, dtype=POLICIES[precision])
        self.key.build((None, None, units))
        self._units = units
        self._precision = precision
        self.built = True

    def keys(self, memory: tf.Tensor) -> tf.Tensor:
        """Project the memory to keys. Both have shape [rows, source, units]."""
        return self._project(memory, self.key)

    def _project(self, vectors: tf.Tensor, layer: keras.layers.Dense) -> tf.Tensor:
        """Multiply vectors [rows, length, units] by a layer's kernel."""
        flat = tf.reshape(vectors, [-1, self._units])  # [rows * length, units]
        return tf.reshape(matmul(flat, tf.convert_to_tensor(layer.kernel), self._precision), tf.shape(vectors))

    def scores(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Score queries [rows, target, units] with keys [rows, source, units]: [rows, target, source]."""
        raise NotImplementedError

    def call(self, queries: tf.Tensor, keys: tf.Tensor, memory: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Return the context of each query.

        Args:
            queries: The decoder's outputs, [rows, target, units].
            keys: The result of `keys`, [rows, source, units].
            memory: The encoder's outputs, [rows, source, units].
            mask: True at tokens and False at padding, [rows, source] bool.

        Returns:
            The contexts, [rows, target, units].
        """
        return weighted_sum(self.scores(queries, keys), memory, mask)

    def compute_weights(self, queries: tf.Tensor, keys: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Return the attention weights, [rows, target, source]. The weights of each query sum to 1."""
        return masked_softmax(self.scores(queries, keys), mask)


def masked_softmax(scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return the softmax of scores [rows, target, source], with 0 at padding.

    Args:
        scores: The attention scores, [rows, target, source].
        mask: True at tokens and False at padding, [rows, source] bool.
    """
    return tf.nn.softmax(tf.where(tf.expand_dims(mask, 1), scores, tf.constant(scores.dtype.min, scores.dtype)))


def weighted_sum(scores: tf.Tensor, memory: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return softmax(scores) memory, [rows, target, units].

    Args:
        scores: The attention scores, [rows, target, source].
        memory: The encoder's outputs, [rows, source, units].
        mask: True at tokens and False at padding, [rows, source] bool.
    """

    @tf.custom_gradient
    def run(scores: tf.Tensor, memory: tf.Tensor) -> tuple[tf.Tensor, Any]:
        weights = masked_softmax(scores, mask)

        def gradient(d_context: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            d_weights = tf.matmul(d_context, memory, transpose_b=True) * weights  # [rows, target, source]
            d_scores = d_weights - weights * tf.reduce_sum(d_weights, -1, keepdims=True)
            return d_scores, tf.matmul(weights, d_context, transpose_a=True)

        return tf.matmul(weights, memory), gradient

    return run(scores, memory)


class LuongAttention(Attention):
    """Multiplicative attention, score(q, m) = q W m (Luong et al., 2015, "general")."""

    def scores(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """See `Attention.scores`."""

        def gradient(d_scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.matmul(d_scores, keys), tf.matmul(d_scores, queries, transpose_a=True)

        return with_gradient(lambda q, k: tf.matmul(q, k, transpose_b=True), gradient, queries, keys)


class BahdanauAttention(Attention):
    """Additive attention, score(q, m) = v tanh(W q + U m) (Bahdanau et al., 2015).

    Attributes:
        chunks: The maximum sizes for `additive_scores`. Exports set them to None to compute without chunks.
    """

    def __init__(self, units: int, precision: str = "float32", on_gpu: bool = False) -> None:
        super().__init__(units, precision)
        on_cpu = MAX_ELEMENTS, CHUNK_ELEMENTS
        self.chunks: tuple[int, int] | None = (MAX_ELEMENTS_ON_GPU, MAX_ELEMENTS_ON_GPU) if on_gpu else on_cpu
        self.query = keras.layers.Dense(units, dtype=POLICIES[precision])
        self.score = keras.layers.Dense(1, use_bias=False)  # only its kernel is used
        for layer in (self.query, self.score):
            layer.build((None, None, units))

    def scores(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """See `Attention.scores`."""
        projected = self._project(queries, self.query) + tf.convert_to_tensor(self.query.bias)
        vector = tf.cast(tf.convert_to_tensor(self.score.kernel)[:, 0], queries.dtype)  # [units]
        if self.chunks is None:
            return _dot(_activations(projected, keys), vector)
        return additive_scores(projected, keys, vector, *self.chunks)


def additive_scores(
    queries: tf.Tensor, keys: tf.Tensor, vector: tf.Tensor, max_elements: int, chunk_elements: int
) -> tf.Tensor:
    """Return vector . tanh(query + key) for each query and key of a row.

    All tensors have the same float dtype.

    Args:
        queries: [rows, target, units].
        keys: [rows, source, units].
        vector: [units].
        max_elements: The maximum number of elements of tanh(query + key) to keep for the backward pass. A larger tensor
            is computed in chunks, in the forward pass and again in the backward pass.
        chunk_elements: The number of elements in a chunk.

    Returns:
        [rows, target, source].
    """
    rows, target, units = tf.unstack(tf.shape(queries))
    row_elements = target * tf.shape(keys)[1] * units
    return tf.cond(
        rows <= max_elements // row_elements,  # rows * row_elements could exceed int32
        lambda: _dot(_activations(queries, keys), vector),
        lambda: _chunked_scores(queries, keys, vector, tf.maximum(1, chunk_elements // row_elements)),
    )


def _activations(queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Return tanh(query + key), [rows, target, source, units]."""
    return tf.tanh(queries[:, :, None, :] + keys[:, None, :, :])


def _dot(activations: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
    """Return the dot product of each activation with a vector, [rows, target, source]."""
    products = tf.matmul(tf.reshape(activations, [-1, tf.size(vector)]), vector[:, None])
    return tf.reshape(products, tf.shape(activations)[:3])


def _chunked_scores(queries: tf.Tensor, keys: tf.Tensor, vector: tf.Tensor, chunk_rows: tf.Tensor) -> tf.Tensor:
    """Compute `additive_scores` in chunks of `chunk_rows` rows (scalar int32)."""

    @tf.custom_gradient
    def scores(queries: tf.Tensor, keys: tf.Tensor, vector: tf.Tensor) -> tuple[tf.Tensor, Any]:
        chunks = (tf.shape(queries)[0] + chunk_rows - 1) // chunk_rows

        def chunk(x: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
            return x[number * chunk_rows : (number + 1) * chunk_rows]

        def is_unfinished(number: tf.Tensor, *_: Any) -> tf.Tensor:
            return number < chunks

        def forward(number: tf.Tensor, results: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            activations = _activations(chunk(queries, number), chunk(keys, number))
            return number + 1, results.write(number, _dot(activations, vector))

        def new_array() -> tf.TensorArray:
            return tf.TensorArray(queries.dtype, chunks, infer_shape=False)  # the last chunk can be smaller

        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            def backward(
                number: tf.Tensor, d_queries: tf.TensorArray, d_keys: tf.TensorArray, d_vector: tf.Tensor
            ) -> tuple[Any, ...]:
                activations = _activations(chunk(queries, number), chunk(keys, number))
                d_scores = chunk(upstream, number)  # [rows, target, source]
                flat = tf.reshape(activations, [-1, tf.size(vector)])
                d_vector += tf.linalg.matvec(flat, tf.reshape(d_scores, [-1]), transpose_a=True)
                # Multiplying by the vector after the sums is cheaper than before.
                d_sums = d_scores[..., None] * (1 - tf.square(activations))  # [rows, target, source, units]
                d_queries = d_queries.write(number, tf.reduce_sum(d_sums, 2) * vector)
                return number + 1, d_queries, d_keys.write(number, tf.reduce_sum(d_sums, 1) * vector), d_vector

            start = tf.constant(0), new_array(), new_array(), tf.zeros_like(vector)
            _, d_queries, d_keys, d_vector = tf.while_loop(is_unfinished, backward, start, parallel_iterations=1)
            d_queries = tf.ensure_shape(d_queries.concat(), queries.shape)
            d_keys = tf.ensure_shape(d_keys.concat(), keys.shape)
            return d_queries, d_keys, d_vector

        _, results = tf.while_loop(is_unfinished, forward, (tf.constant(0), new_array()), parallel_iterations=1)
        return tf.ensure_shape(results.concat(), [*queries.shape[:2], keys.shape[1]]), gradients

    return scores(queries, keys, vector)


# Multi-head attention (Vaswani et al., 2017).


class VectorLayout(NamedTuple):
    """How the vectors of a batch are stored: row by row with padding, or packed (see `chatbot.model.sequences`)."""

    shape: tf.Tensor  # [2] int32, rows and time
    positions: tf.Tensor  # [time] float32: 0, 1, 2 and so on
    packing: Packing | None = None  # None if stored row by row
    is_real: tf.Tensor | None = None  # if packed: 0 for fillers, otherwise 1, [vectors, 1] float32


def vector_layout(sequences: Sequences) -> VectorLayout:
    """Return the layout of the vectors of sequences."""
    if not sequences.is_packed:
        return padded_layout(sequences.ids)
    packing = sequences.packing
    tokens = tf.size(packing.to_packed)
    is_real = tf.cast(tf.range(tokens) < tokens - packing.fillers, tf.float32)
    return padded_layout(packing.to_padded)._replace(packing=packing, is_real=is_real[:, None])


def padded_layout(rows: tf.Tensor) -> VectorLayout:
    """Return the padded layout for a tensor with shape [rows, time], whose values are ignored."""
    # tf.cumsum runs on the device of the tensor, but tf.range would run on the host.
    return VectorLayout(tf.shape(rows), tf.cumsum(tf.ones_like(rows[0], tf.float32), exclusive=True))


def to_rows(x: tf.Tensor, layout: VectorLayout) -> tf.Tensor:
    """Convert vectors [vectors, size] to rows [rows, time, size].

    The values at padding are arbitrary. The gradient at fillers is 0.
    """
    if layout.packing is None:
        return tf.reshape(x, tf.concat([layout.shape, [x.shape[-1]]], 0))
    packing = layout.packing
    is_real = layout.is_real
    size = x.shape[-1]

    def gradient(d_rows: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.reshape(d_rows, [-1, size]), packing.to_packed) * is_real

    return with_gradient(lambda vectors: tf.gather(vectors, packing.to_padded), gradient, x)


def split_heads(x: tf.Tensor, parts: int, heads: int, layout: VectorLayout) -> list[tf.Tensor]:
    """Split vectors into parts, such as queries, keys and values, and each part into heads.

    The gradient at fillers is 0.

    Args:
        x: The vectors, [vectors, parts * size].
        parts: The number of parts.
        heads: The number of heads.
        layout: The layout of the vectors.

    Returns:
        The parts, each with shape [rows, heads, time, size / heads]. Their values at padding are arbitrary.
    """

    def gradient(*d_parts: tf.Tensor) -> tf.Tensor:
        d_x = _merge(d_parts, layout)
        return d_x if layout.packing is None else d_x * layout.is_real

    return list(with_gradient(lambda vectors: _split(vectors, parts, heads, layout), gradient, x))


def join_heads(x: tf.Tensor, layout: VectorLayout) -> tf.Tensor:
    """Concatenate heads [rows, heads, time, size] to vectors [vectors, heads * size].

    The incoming gradient must be 0 at fillers.
    """
    heads = x.shape[1]
    return with_gradient(lambda part: _merge([part], layout), lambda d: _split(d, 1, heads, layout)[0], x)


def _split(x: tf.Tensor, parts: int, heads: int, layout: VectorLayout) -> list[tf.Tensor]:
    sizes = [parts, heads, x.shape[-1] // (parts * heads)]
    padded = x if layout.packing is None else tf.gather(x, layout.packing.to_padded)
    # [rows, time, parts, heads, size] -> [parts, rows, heads, time, size]
    by_part = tf.transpose(tf.reshape(padded, tf.concat([layout.shape, sizes], 0)), [2, 0, 3, 1, 4])
    return tf.unstack(by_part, num=parts)  # copies nothing


def _merge(parts: Sequence[tf.Tensor], layout: VectorLayout) -> tf.Tensor:
    _, heads, _, size = parts[0].shape
    # [parts, rows, heads, time, size] -> [rows, time, parts, heads, size]
    by_vector = tf.transpose(tf.stack(parts), [1, 3, 0, 2, 4])
    padded = tf.reshape(by_vector, [-1, len(parts) * heads * size])  # [rows * time, parts * heads * size]
    return padded if layout.packing is None else tf.gather(padded, layout.packing.to_packed)


def padding_mask(mask: tf.Tensor) -> tf.Tensor:
    """Convert the mask of the questions [rows, source] to an additive mask, [rows, 1, 1, source]."""
    return tf.expand_dims(tf.expand_dims(additive_mask(mask), 1), 1)


def additive_mask(mask: tf.Tensor) -> tf.Tensor:
    """Convert a boolean mask to a mask to add to scores: 0 where it is True, otherwise the minimum of float32."""
    return tf.where(mask, 0.0, tf.float32.min)


def multi_head_attention(inputs: Sequence[tf.Tensor], mask: tf.Tensor, precision: str, scale: float) -> tf.Tensor:
    """Return softmax(scale queries keys^T + mask + position_bias) values for each head.

    Args:
        inputs: The queries [rows, heads, target, size], the keys and values [rows, heads, source, size], and optionally
            the position_bias [1, heads, target, source]. The bias can differ between rows if no gradient is computed.
        mask: The result of `additive_mask`, which is broadcast to [rows, heads, target, source].
        precision: The precision of products; see `chatbot.model.operations`.
        scale: A factor for the products of queries and keys.

    Returns:
        The contexts, [rows, heads, target, size].
    """

    @tf.custom_gradient
    def run(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, *bias: tf.Tensor) -> tuple[tf.Tensor, Any]:
        queries, keys, values = (to_precision(x, precision) for x in (queries, keys, values))
        weights = attention_weights(queries, keys, mask + bias[0] if bias else mask, precision, scale)
        rounded_weights = to_precision(weights, precision)

        def gradient(d_context: tf.Tensor) -> tuple[tf.Tensor, ...]:
            d_context = to_precision(d_context, precision)
            d_weights = matmul(d_context, values, precision, transpose_b=True) * weights
            d_sums = d_weights - weights * tf.reduce_sum(d_weights, -1, keepdims=True)  # [rows, heads, target, source]
            d_bias = [tf.reduce_sum(d_sums, 0, keepdims=True) for _ in bias]
            d_scores = to_precision(d_sums * scale, precision)
            d_queries = matmul(d_scores, keys, precision)
            d_keys = matmul(d_scores, queries, precision, transpose_a=True)
            return d_queries, d_keys, matmul(rounded_weights, d_context, precision, transpose_a=True), *d_bias

        return matmul(rounded_weights, values, precision), gradient

    return run(*inputs)


def attention_weights(queries: tf.Tensor, keys: tf.Tensor, mask: tf.Tensor, precision: str, scale: float) -> tf.Tensor:
    """Return the attention weights of `multi_head_attention`, [rows, heads, target, source]."""
    scores = matmul(queries, keys, precision, transpose_b=True) * scale
    return tf.nn.softmax(scores + mask)
