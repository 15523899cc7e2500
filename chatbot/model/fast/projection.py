"""Projection onto the vocabulary and cross-entropy in one, a chunk of positions at a time, with its own gradient.

The plain way keeps logits and their gradient of all positions: twice positions x vocabulary. Here a chunk's logits
become its part of the gradient at once and are forgotten, as in Liger's fused linear cross-entropy (Hsu et al.,
2024). The one at the target never meets the probabilities: it is rows of its own.
"""

from typing import Any

import tensorflow as tf

from chatbot.model.product import product, rounded

# Logits of a chunk: 64 MB of float32.
CHUNK = 1 << 24
# Where a target is less probable, its loss is made of the logits again: float32 ends here.
LEAST = 2e-38


def projection_loss(
    attended: tf.Tensor,
    embeddings: tf.Tensor,
    bias: tf.Tensor,
    targets: tf.Tensor,
    weights: tf.Tensor,
    dtype: str = "float32",
    chunk: int = CHUNK,
) -> tf.Tensor:
    """The weighted cross-entropy, summed: what `sequence_loss` returns of attended embeddings' + bias. Scalar.

    attended [tokens, units], embeddings [vocabulary, units], bias [vocabulary], targets [tokens] int32,
    weights [tokens]. dtype: what the factors of products are rounded to. chunk: logits in memory at a time,
    or those of one token where the vocabulary is larger.
    """

    @tf.custom_gradient
    def run(attended: tf.Tensor, embeddings: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Any]:
        factor = rounded(embeddings, dtype)
        tokens = tf.shape(attended)[0]
        at_once = max(1, chunk // embeddings.shape[0])

        chunks = tf.maximum(1, (tokens + at_once - 1) // at_once)  # one, empty, of a tower without a token

        def chunk_at(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
            here = slice(number * at_once, (number + 1) * at_once)
            return _chunk(attended[here], factor, bias, targets[here], weights[here], dtype)

        def add(number: tf.Tensor, to_attended: tf.TensorArray, *sums: tf.Tensor) -> tuple[Any, ...]:
            loss, d_attended, *gradients = chunk_at(number)
            more = (a + b for a, b in zip(sums, (loss, *gradients), strict=True))
            return number + 1, to_attended.write(number, d_attended), *more

        # Most batches are one chunk: the first one is no part of the loop, so that nothing is added to zeros.
        loss, d_attended, *gradients = chunk_at(tf.constant(0))
        parts = tf.TensorArray(attended.dtype, chunks, infer_shape=False).write(0, d_attended)
        _, to_attended, loss, *rest = tf.while_loop(
            lambda number, *_: number < chunks, add, (1, parts, loss, *gradients), parallel_iterations=1
        )
        found = tf.ensure_shape(to_attended.concat(), attended.shape), *rest
        return loss, lambda upstream: tuple(upstream * gradient for gradient in found)

    return run(attended, embeddings, bias)


def _chunk(
    attended: tf.Tensor, factor: tf.Tensor, bias: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, dtype: str
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The loss of some positions and its gradients; factor: the embeddings, rounded."""
    probabilities = tf.nn.softmax(_logits(attended, factor, bias, dtype))  # [tokens, vocabulary]
    of_targets = tf.cast(tf.gather(probabilities, targets, batch_dims=1), attended.dtype)  # [tokens]
    hopeless = tf.where(~(of_targets > LEAST))  # [few, 1], and what is not a number
    again = tf.cast(_logits(tf.gather_nd(attended, hopeless), factor, bias, dtype), attended.dtype)  # [few, vocabulary]
    exact = tf.reduce_logsumexp(again, -1) - tf.gather(again, tf.gather_nd(targets, hopeless), batch_dims=1)
    losses = tf.tensor_scatter_nd_update(-tf.math.log(of_targets), hopeless, exact)
    probabilities = rounded(probabilities, dtype)
    # The gradient of the logits is probabilities less one at the target; the latter is rows, not a matrix.
    targets, here = targets[:, None], weights[:, None]
    to_attended = (product(probabilities, factor, dtype) - tf.cast(tf.gather_nd(factor, targets), here.dtype)) * here
    weighted = attended * here
    to_embeddings = product(probabilities, weighted, dtype, transpose_a=True)
    to_embeddings = tf.tensor_scatter_nd_sub(to_embeddings, targets, weighted)
    to_bias = tf.tensor_scatter_nd_sub(product(weights[None], probabilities, dtype)[0], targets, weights)
    return tf.reduce_sum(losses * weights), to_attended, to_embeddings, to_bias


def _logits(attended: tf.Tensor, factor: tf.Tensor, bias: tf.Tensor, dtype: str) -> tf.Tensor:
    """[tokens, vocabulary]. As bfloat16 from the product on, as in PyTorch's autocast: half the memory to pass over.

    Not as float16, which rounds probabilities below 6e-8 to none.
    """
    if dtype != "bfloat16":
        return product(attended, factor, dtype, transpose_b=True) + bias
    return tf.nn.bias_add(tf.matmul(rounded(attended, dtype), factor, transpose_b=True), rounded(bias, dtype))
