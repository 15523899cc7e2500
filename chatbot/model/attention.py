"""Attention over a sequence: of a recurrent decoder over the encoder's memory, and of several heads in a Transformer.

All target positions are computed at once in training, and one at a time in decoding. Vectors of a Transformer are
matrices [vectors, features], so that every product is one of two matrices. Gradients are written out: those of
TensorFlow compute shapes, and transpose keys and values once more.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from chatbot.model.operations import matmul, policy, rounded, with_gradient
from chatbot.model.sequences import Packing, Sequences

# The intermediate tensor of Bahdanau's score is kept for the backward pass up to LARGEST elements, and is computed
# twice in chunks of CHUNK elements beyond, which stay in a CPU's cache. A GPU needs few kernels, and so large chunks.
LARGEST = 1 << 22
CHUNK = 1 << 20
LARGEST_ON_GPU = 1 << 24


class Attention(keras.layers.Layer):
    """The weighted mean of the memory: context = softmax(score(query, memory)) memory. Subclasses define the score."""

    def __init__(self, units: int, precision: str = "float32", on_gpu: bool = False) -> None:
        super().__init__()
        self.key = keras.layers.Dense(units, use_bias=False, dtype=policy(precision))
        self.key.build((None, None, units))
        self._units = units
        self._precision = precision
        self._on_gpu = on_gpu
        self.built = True

    def keys(self, memory: tf.Tensor) -> tf.Tensor:
        """memory [rows, source, units] -> keys [rows, source, units], computed once for each question."""
        return self._projected(memory, self.key)

    def _projected(self, vectors: tf.Tensor, layer: keras.layers.Dense) -> tf.Tensor:
        """[rows, length, units] -> [rows, length, units], by a layer's kernel."""
        flat = tf.reshape(vectors, [-1, self._units])  # [rows * length, units]
        return tf.reshape(matmul(flat, tf.convert_to_tensor(layer.kernel), self._precision), tf.shape(vectors))

    def scores(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """queries [rows, target, units], keys [rows, source, units] -> scores [rows, target, source]."""
        raise NotImplementedError

    def call(self, queries: tf.Tensor, keys: tf.Tensor, memory: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """queries [rows, target, units], keys and memory [rows, source, units] -> context [rows, target, units].

        mask: [rows, source] bool, True at real tokens; padding gets no weight.
        """
        return weighted_means(self.scores(queries, keys), memory, mask)

    def weights_of(self, queries: tf.Tensor, keys: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Return the weights of `call`, [rows, target, source]; those of each query add up to 1."""
        return masked_softmax(self.scores(queries, keys), mask)


def masked_softmax(scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """scores [rows, target, source], mask [rows, source] bool -> weights [rows, target, source], 0 at padding."""
    return tf.nn.softmax(tf.where(mask[:, None, :], scores, tf.constant(scores.dtype.min, scores.dtype)))


def weighted_means(scores: tf.Tensor, memory: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return softmax(scores) memory, [rows, target, units].

    The gradient is written out, because TensorFlow's first computes which dimensions were broadcast: none are.

    scores [rows, target, source], memory [rows, source, units], mask [rows, source] bool.
    """

    @tf.custom_gradient
    def run(scores: tf.Tensor, memory: tf.Tensor) -> tuple[tf.Tensor, Any]:
        weights = masked_softmax(scores, mask)

        def gradient(d_means: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            d_weights = tf.matmul(d_means, memory, transpose_b=True) * weights
            d_scores = d_weights - weights * tf.reduce_sum(d_weights, -1, keepdims=True)
            return d_scores, tf.matmul(weights, d_means, transpose_a=True)

        return tf.matmul(weights, memory), gradient

    return run(scores, memory)


class LuongAttention(Attention):
    """score(q, m) = q W m (Luong et al., 2015, "general")."""

    def scores(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        def gradient(d_scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.matmul(d_scores, keys), tf.matmul(d_scores, queries, transpose_a=True)

        return with_gradient(lambda q, k: tf.matmul(q, k, transpose_b=True), gradient, queries, keys)


class BahdanauAttention(Attention):
    """score(q, m) = v tanh(W q + U m) (Bahdanau et al., 2015).

    in_chunks: whether many scores are computed in chunks. An export has none: they need a condition and a list of
    tensors.
    """

    def __init__(self, units: int, precision: str = "float32", on_gpu: bool = False) -> None:
        super().__init__(units, precision, on_gpu)
        self.in_chunks = True
        self.query = keras.layers.Dense(units, dtype=policy(precision))
        self.score = keras.layers.Dense(1, use_bias=False)  # only its kernel is used
        for layer in (self.query, self.score):
            layer.build((None, None, units))

    def scores(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        projected = self._projected(queries, self.query) + tf.convert_to_tensor(self.query.bias)
        vector = tf.cast(tf.convert_to_tensor(self.score.kernel)[:, 0], queries.dtype)  # [units]
        if not self.in_chunks:
            return _products(_activations(projected, keys), vector)
        if self._on_gpu:
            return additive_scores(projected, keys, vector, LARGEST_ON_GPU, LARGEST_ON_GPU)
        return additive_scores(projected, keys, vector, LARGEST, CHUNK)


def additive_scores(queries: tf.Tensor, keys: tf.Tensor, vector: tf.Tensor, largest: int, chunk: int) -> tf.Tensor:
    """Return vector . tanh(query + key) of each query and key of a row, [rows, target, source].

    If tanh(query + key) has more than `largest` elements, it is computed in chunks of `chunk` elements, in the forward
    pass and again in the backward pass.

    queries [rows, target, units], keys [rows, source, units], vector [units], all of one float type.
    """
    rows, target, units = tf.unstack(tf.shape(queries))
    row_elements = target * tf.shape(keys)[1] * units
    return tf.cond(
        rows <= largest // row_elements,  # without the product, which may exceed int32
        lambda: _products(_activations(queries, keys), vector),
        lambda: _chunked_scores(queries, keys, vector, tf.maximum(1, chunk // row_elements)),
    )


def _activations(queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Return tanh(query + key), [rows, target, source, units]."""
    return tf.tanh(queries[:, :, None, :] + keys[:, None, :, :])


def _products(activations: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
    """Return vector . activation, [rows, target, source]. tf.tensordot computes sizes on a GPU."""
    products = tf.matmul(tf.reshape(activations, [-1, tf.size(vector)]), vector[:, None])
    return tf.reshape(products, tf.shape(activations)[:3])


def _chunked_scores(queries: tf.Tensor, keys: tf.Tensor, vector: tf.Tensor, chunk_rows: tf.Tensor) -> tf.Tensor:
    """Return `additive_scores`. chunk_rows: scalar int32, the rows of a chunk."""

    @tf.custom_gradient
    def scores(queries: tf.Tensor, keys: tf.Tensor, vector: tf.Tensor) -> tuple[tf.Tensor, Any]:
        chunks = (tf.shape(queries)[0] + chunk_rows - 1) // chunk_rows

        def rows_of(x: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
            return x[number * chunk_rows : (number + 1) * chunk_rows]

        def unfinished(number: tf.Tensor, *_: Any) -> tf.Tensor:
            return number < chunks

        def forward(number: tf.Tensor, parts: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            activations = _activations(rows_of(queries, number), rows_of(keys, number))
            return number + 1, parts.write(number, _products(activations, vector))

        def parts() -> tf.TensorArray:
            return tf.TensorArray(queries.dtype, chunks, infer_shape=False)  # the last chunk may be smaller

        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            def backward(
                number: tf.Tensor, d_queries: tf.TensorArray, d_keys: tf.TensorArray, d_vector: tf.Tensor
            ) -> tuple[Any, ...]:
                activations = _activations(rows_of(queries, number), rows_of(keys, number))
                d_scores = rows_of(upstream, number)  # [rows, target, source]
                flat = tf.reshape(activations, [-1, tf.size(vector)])
                d_vector += tf.linalg.matvec(flat, tf.reshape(d_scores, [-1]), transpose_a=True)
                # The vector is a factor of every element, and is multiplied after the sums.
                d_sums = d_scores[..., None] * (1 - tf.square(activations))  # [rows, target, source, units]
                d_queries = d_queries.write(number, tf.reduce_sum(d_sums, 2) * vector)
                return number + 1, d_queries, d_keys.write(number, tf.reduce_sum(d_sums, 1) * vector), d_vector

            start = tf.constant(0), parts(), parts(), tf.zeros_like(vector)
            _, d_queries, d_keys, d_vector = tf.while_loop(unfinished, backward, start, parallel_iterations=1)
            d_queries, d_keys = (
                tf.ensure_shape(x.concat(), of.shape) for x, of in ((d_queries, queries), (d_keys, keys))
            )
            return d_queries, d_keys, d_vector

        _, result = tf.while_loop(unfinished, forward, (tf.constant(0), parts()), parallel_iterations=1)
        return tf.ensure_shape(result.concat(), [*queries.shape[:2], keys.shape[1]]), gradients

    return scores(queries, keys, vector)


# Of several heads (Vaswani et al., 2017).


class Layout(NamedTuple):
    """How the vectors of a batch of sequences follow one another: row by row with their padding, or packed."""

    shape: tf.Tensor  # [2] int32, rows and time
    places: tf.Tensor  # [time] float32: 0, 1, 2 and so on
    packing: Packing | None = None  # None: row by row
    is_real: tf.Tensor | None = None  # of packed vectors, [vectors, 1] float32, 0 for fillers


def layout_of(sequences: Sequences) -> Layout:
    """Return the layout of the vectors of sequences."""
    if not sequences.is_packed:
        return row_by_row(sequences.ids)
    packing = sequences.packing
    tokens = tf.size(packing.to_packed)
    is_real = tf.cast(tf.range(tokens) < tokens - packing.fillers, tf.float32)
    return row_by_row(packing.to_padded)._replace(packing=packing, is_real=is_real[:, None])


def row_by_row(positions: tf.Tensor) -> Layout:
    """Return the layout of one vector for each element of positions, [rows, time]."""
    # The places are computed on the device of the positions, where tf.range is not.
    return Layout(tf.shape(positions), tf.cumsum(tf.ones_like(positions[0], tf.float32), exclusive=True))


def in_rows(x: tf.Tensor, layout: Layout) -> tf.Tensor:
    """[vectors, size] -> [rows, time, size], at padding any values. By its gradient, fillers have 0."""
    if layout.packing is None:
        return tf.reshape(x, tf.concat([layout.shape, [x.shape[-1]]], 0))
    packing = layout.packing
    is_real = layout.is_real
    size = x.shape[-1]

    def gradient(d_rows: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.reshape(d_rows, [-1, size]), packing.to_packed) * is_real

    return with_gradient(lambda vectors: tf.gather(vectors, packing.to_padded), gradient, x)


def split_heads(x: tf.Tensor, parts: int, heads: int, layout: Layout) -> list[tf.Tensor]:
    """[vectors, parts * size] -> each part by itself, [rows, heads, time, size / heads], at padding any values.

    By its gradient, fillers have 0.
    """

    def gradient(*d_parts: tf.Tensor) -> tf.Tensor:
        d_x = _joined(d_parts, layout)
        return d_x if layout.packing is None else d_x * layout.is_real

    return list(with_gradient(lambda vectors: _split(vectors, parts, heads, layout), gradient, x))


def join_heads(x: tf.Tensor, layout: Layout) -> tf.Tensor:
    """[rows, heads, time, part] -> [vectors, heads * part]. The gradient with respect to fillers must be 0."""
    heads = x.shape[1]
    return with_gradient(lambda part: _joined([part], layout), lambda d: _split(d, 1, heads, layout)[0], x)


def _split(x: tf.Tensor, parts: int, heads: int, layout: Layout) -> list[tf.Tensor]:
    of_parts = [parts, heads, x.shape[-1] // (parts * heads)]
    padded = x if layout.packing is None else tf.gather(x, layout.packing.to_padded)
    by_part = tf.transpose(tf.reshape(padded, tf.concat([layout.shape, of_parts], 0)), [2, 0, 3, 1, 4])
    return tf.unstack(by_part, num=parts)  # which copies nothing


def _joined(of_parts: Sequence[tf.Tensor], layout: Layout) -> tf.Tensor:
    _, heads, _, size = of_parts[0].shape
    by_vector = tf.transpose(tf.stack(of_parts), [1, 3, 0, 2, 4])
    padded = tf.reshape(by_vector, [-1, len(of_parts) * heads * size])
    return padded if layout.packing is None else tf.gather(padded, layout.packing.to_packed)


def penalties(mask: tf.Tensor) -> tf.Tensor:
    """Return what is added to scores, in the shape of the mask: 0, or where it is False the least float32."""
    return tf.where(mask, 0.0, tf.float32.min)


def attended(factors: Sequence[tf.Tensor], added: tf.Tensor, precision: str, scale: float) -> tf.Tensor:
    """Return softmax(queries keys scale + scores) values of each head, [rows, heads, target, part].

    factors: queries [rows, heads, target, part], keys and values [rows, heads, source, part], and with learned scores
    of distances these, [1, heads, target, source], or [rows, heads, target, source] where no gradient is asked for.
    added: `penalties`, broadcast to [rows, heads, target, source].
    """

    @tf.custom_gradient
    def run(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, *learned: tf.Tensor) -> tuple[tf.Tensor, Any]:
        queries, keys, values = (rounded(x, precision) for x in (queries, keys, values))
        weights = weights_of(queries, keys, added + learned[0] if learned else added, precision, scale)
        rounded_weights = rounded(weights, precision)

        def gradient(d_means: tf.Tensor) -> tuple[tf.Tensor, ...]:
            d_means = rounded(d_means, precision)
            d_weights = matmul(d_means, values, precision, transpose_b=True) * weights
            d_sums = d_weights - weights * tf.reduce_sum(d_weights, -1, keepdims=True)
            d_learned = [tf.reduce_sum(d_sums, 0, keepdims=True) for _ in learned]
            d_scores = rounded(d_sums * scale, precision)
            d_queries = matmul(d_scores, keys, precision)
            d_keys = matmul(d_scores, queries, precision, transpose_a=True)
            return d_queries, d_keys, matmul(rounded_weights, d_means, precision, transpose_a=True), *d_learned

        return matmul(rounded_weights, values, precision), gradient

    return run(*factors)


def weights_of(queries: tf.Tensor, keys: tf.Tensor, added: tf.Tensor, precision: str, scale: float) -> tf.Tensor:
    """Return the weights of each head, [rows, heads, target, source]. The arguments are those of `attended`."""
    scores = matmul(queries, keys, precision, transpose_b=True) * scale
    return tf.nn.softmax(scores + added)
