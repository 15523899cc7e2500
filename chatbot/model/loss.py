"""The cross-entropy loss, fused with the projection to the vocabulary to save memory.

The tokens of a batch are processed in chunks, as in Liger's fused linear cross-entropy (Hsu et al., 2024). Only the
logits of one chunk are in memory, because their gradient is computed immediately.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from chatbot.model.operations import matmul, scatter_add, to_precision

# The number of logits to keep in memory if the memory size of the device is unknown. They take 64 MB in float32.
LOGITS = 1 << 24
# The maximum number of logits in a tensor. Some of TensorFlow's kernels, such as SparseSoftmaxCrossEntropyWithLogits,
# use 32-bit indices.
MAX_LOGITS = (1 << 31) - 1
# About the smallest normal float32. Below this probability, the loss is computed from the logits to avoid underflow.
MIN_PROBABILITY = 2e-38


def max_logits_for(memory: int | None) -> int:
    """Return how many logits a device should keep in memory.

    About three tensors of this size exist at the same time. Together, they may use a fifth of the memory.

    Args:
        memory: The memory of the device in bytes, or None if unknown.
    """
    return LOGITS if memory is None else min(max(LOGITS, memory // (5 * 3 * 4)), MAX_LOGITS)


class LossSize(NamedTuple):
    """The sizes that determine the chunks of the loss."""

    logits: int = LOGITS  # maximum number of logits in memory
    max_tokens: int | None = None  # maximum number of tokens in a batch; None if unknown

    def chunk_tokens(self, vocabulary: int, units: int) -> int:
        """Return the number of tokens in a chunk.

        The number is at least `units`. Smaller chunks would be slow, because each chunk adds a gradient as large as the
        embeddings.
        """
        return max(1, min(max(units, self.logits // vocabulary), MAX_LOGITS // vocabulary))


def projection_loss(
    attended: tf.Tensor,
    embeddings: tf.Tensor,
    bias: tf.Tensor,
    targets: tf.Tensor,
    weights: tf.Tensor,
    precision: str,
    size: LossSize,
    mixture: tuple[tf.Tensor, ...],
    smoothing: npt.NDArray[np.floating] | None,
    on_gpu: bool,
) -> tf.Tensor:
    """Return the sum of the weighted cross-entropy in nats.

    The logits are attended embeddings^T + bias.

    Args:
        attended: The decoder's outputs, [tokens, units].
        embeddings: The projection to the vocabulary, [vocabulary, units].
        bias: The bias of the logits, [vocabulary].
        targets: The target ids, [tokens] int64.
        weights: The weight of each token's loss, [tokens].
        precision: The precision of products; see `chatbot.model.operations`.
        size: The sizes that determine the chunks.
        mixture: Empty, or (log_generate, log_copied) for a model that copies, [tokens] each. The probability of a
            target is then exp(log_generate) softmax(logits)[target] + exp(log_copied).
        smoothing: For label smoothing (Szegedy et al., 2016): the probability to move from the target to each token,
            [vocabulary]. It requires an empty mixture.
        on_gpu: Whether the computation runs on a GPU.

    Returns:
        The loss, scalar float32.
    """
    chunk_tokens = size.chunk_tokens(*embeddings.shape)

    @tf.custom_gradient
    def run(attended: tf.Tensor, embeddings: tf.Tensor, bias: tf.Tensor, *mixture: tf.Tensor) -> tuple[tf.Tensor, Any]:
        factor = to_precision(embeddings, precision)
        compute = _chunk_on_gpu if on_gpu else _chunk
        tokens = Tokens(attended, targets, weights, mixture)

        def compute_chunk(part: slice | None) -> tuple[TokenGradients, ChunkSums]:
            chunk = tokens if part is None else tf.nest.map_structure(lambda x: x[part], tokens)
            results = compute(chunk, factor, bias, precision)
            if smoothing is None:
                return results
            terms = _smoothing_terms(chunk, factor, bias, smoothing, on_gpu)
            return tf.nest.map_structure(tf.add, results, terms)

        (d_attended, *d_mixture), (loss, d_embeddings, d_bias) = sum_chunks(
            compute_chunk, (attended, *mixture), chunk_tokens, size.max_tokens
        )
        gradients = d_attended, d_embeddings, d_bias, *d_mixture
        return loss, lambda upstream: tuple(upstream * gradient for gradient in gradients)

    return run(attended, embeddings, bias, *mixture)


class Tokens(NamedTuple):
    """The tokens of a batch or of a chunk. The first axis of each tensor is the token."""

    attended: tf.Tensor
    targets: tf.Tensor
    weights: tf.Tensor
    mixture: tuple[tf.Tensor, ...]


# The gradients of the loss with respect to the decoder's outputs and the mixture, with one row per token.
TokenGradients = tuple[tf.Tensor, ...]
# The loss, and its gradients with respect to the embeddings and the bias.
ChunkSums = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def sum_chunks(
    compute_chunk: Callable[[slice | None], tuple[TokenGradients, ChunkSums]],
    inputs: tuple[tf.Tensor, ...],
    chunk_tokens: int,
    max_tokens: int | None,
) -> tuple[TokenGradients, ChunkSums]:
    """Compute all chunks of a batch, concatenate the gradients of their tokens, and add up their sums.

    Args:
        compute_chunk: A function that computes the given slice of the tokens, or all tokens if it is None.
        inputs: The tensors that get a gradient for each token, with one row per token.
        chunk_tokens: The number of tokens in a chunk.
        max_tokens: The maximum number of tokens in a batch, or None if unknown.
    """
    tokens = tf.shape(inputs[0])[0]

    def add_chunk(start: tf.Tensor, gradients: TokenGradients, sums: ChunkSums) -> tuple[Any, ...]:
        chunk_gradients, chunk_sums = compute_chunk(slice(start, start + chunk_tokens))
        gradients = tuple(tf.concat(parts, 0) for parts in zip(gradients, chunk_gradients, strict=True))
        return start + chunk_tokens, gradients, tuple(a + b for a, b in zip(sums, chunk_sums, strict=True))

    if max_tokens is not None and max_tokens <= chunk_tokens:
        return compute_chunk(None)  # A loop would be slower, because the host of a GPU waits for its condition.
    # Most batches have a single chunk, so the loop starts at the second one.
    state = tf.constant(chunk_tokens), *compute_chunk(slice(0, chunk_tokens))
    start_shape, _, sum_shapes = tf.nest.map_structure(lambda x: x.shape, state)
    gradient_shapes = tuple(tf.TensorShape([None, *x.shape[1:]]) for x in state[1])
    shapes = start_shape, gradient_shapes, sum_shapes
    _, gradients, sums = tf.while_loop(
        lambda start, *_: start < tokens, add_chunk, state, shapes, parallel_iterations=1
    )
    return tuple(tf.ensure_shape(d, x.shape) for d, x in zip(gradients, inputs, strict=True)), sums


def _mix_copies(losses: tf.Tensor, chunk: Tokens) -> tuple[tf.Tensor, tf.Tensor, tuple[tf.Tensor, ...]]:
    """Compute the losses of a model that copies.

    Returns:
        The losses, the probability that each target was generated rather than copied, which is a factor of the
        softmax's gradient, and the gradients of the mixture.
    """
    if not chunk.mixture:
        return losses, chunk.weights, ()
    log_generate, log_copied = chunk.mixture
    difference = log_generate - losses - log_copied  # log-odds of generating the target against copying it
    generated = tf.sigmoid(difference) * chunk.weights
    return -log_copied - tf.nn.softplus(difference), generated, (-generated, generated - chunk.weights)


def _chunk_on_gpu(
    chunk: Tokens, factor: tf.Tensor, bias: tf.Tensor, precision: str
) -> tuple[TokenGradients, ChunkSums]:
    """Compute the same as `_chunk`, with TensorFlow's fused operation for softmax and cross-entropy.

    `_chunk` would be slow on a GPU, because the host waits for the number of targets that underflow. The fused
    operation is slow on a CPU, where it takes eight times as long as a softmax.
    """
    attended = chunk.attended
    targets = chunk.targets
    logits = matmul(attended, factor, precision, transpose_b=True) + bias  # [tokens, vocabulary] float32
    if is_op_determinism_enabled():  # The fused operation is not deterministic.
        log_probabilities = tf.nn.log_softmax(logits)
        losses = -tf.gather(log_probabilities, targets, batch_dims=1)
        d_logits = tf.exp(log_probabilities) - tf.one_hot(targets, logits.shape[1])
    else:
        losses, d_logits = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=targets)
    losses, generated, d_mixture = _mix_copies(losses, chunk)
    d_logits = to_precision(d_logits, precision)
    row_weights = tf.expand_dims(generated, 1)  # [tokens, 1]
    d_attended = matmul(d_logits, factor, precision) * row_weights
    d_embeddings = matmul(d_logits, attended * row_weights, precision, transpose_a=True)
    d_bias = tf.squeeze(matmul(row_weights, d_logits, precision, transpose_a=True), 0)
    return (d_attended, *d_mixture), (tf.reduce_sum(losses * chunk.weights), d_embeddings, d_bias)


def _chunk(chunk: Tokens, factor: tf.Tensor, bias: tf.Tensor, precision: str) -> tuple[TokenGradients, ChunkSums]:
    """Compute the loss of a chunk and its gradients.

    Args:
        chunk: The tokens.
        factor: The embeddings, rounded to the precision.
        bias: The bias of the logits.
        precision: The precision of products.
    """
    attended = chunk.attended
    targets = chunk.targets
    probabilities = tf.nn.softmax(_logits(attended, factor, bias, precision))  # [tokens, vocabulary]
    target_probabilities = tf.cast(tf.gather(probabilities, targets, batch_dims=1), attended.dtype)  # [tokens]
    underflowed = tf.where(~(target_probabilities > MIN_PROBABILITY))  # [few, 1], NaN included
    logits = _logits(tf.gather_nd(attended, underflowed), factor, bias, precision)  # [few, vocabulary]
    logits = tf.cast(logits, attended.dtype)
    exact = tf.reduce_logsumexp(logits, -1) - tf.gather(logits, tf.gather_nd(targets, underflowed), batch_dims=1)
    losses = tf.tensor_scatter_nd_update(-tf.math.log(target_probabilities), underflowed, exact)  # [tokens]
    probabilities = to_precision(probabilities, precision)
    # The gradient with respect to the logits is probabilities - one_hot(targets). Selecting rows avoids building the
    # one-hot matrix.
    losses, generated, d_mixture = _mix_copies(losses, chunk)
    target_rows = targets[:, None]  # [tokens, 1]
    row_weights = generated[:, None]  # [tokens, 1]
    target_factors = tf.cast(tf.gather_nd(factor, target_rows), attended.dtype)  # [tokens, units]
    d_attended = (matmul(probabilities, factor, precision) - target_factors) * row_weights
    weighted = attended * row_weights
    d_embeddings = matmul(probabilities, weighted, precision, transpose_a=True)
    d_embeddings = tf.tensor_scatter_nd_sub(d_embeddings, target_rows, weighted)
    d_bias = tf.tensor_scatter_nd_sub(matmul(generated[None], probabilities, precision)[0], target_rows, generated)
    return (d_attended, *d_mixture), (tf.reduce_sum(losses * chunk.weights), d_embeddings, d_bias)


def _smoothing_terms(
    chunk: Tokens, factor: tf.Tensor, bias: tf.Tensor, smoothing: npt.NDArray[np.floating], on_gpu: bool
) -> tuple[TokenGradients, ChunkSums]:
    """Return what label smoothing adds to the results of a chunk without a mixture.

    For each target, the added loss is the sum of weight * smoothing * (target logit - token logit) over the vocabulary.
    This sum is linear in the logits, so it can be computed from the mean embedding.
    """
    attended, targets, weights, _ = chunk
    factor = tf.cast(factor, attended.dtype)
    total = float(smoothing.sum())
    column = tf.constant(smoothing[:, None], bias.dtype)  # [vocabulary, 1]
    target_rows = targets[:, None]  # [tokens, 1]
    row_weights = weights[:, None]  # [tokens, 1]
    mean = tf.matmul(column, factor, transpose_a=True)  # [1, units], the mean embedding times the total
    differences = total * tf.gather_nd(factor, target_rows) - mean  # [tokens, units]
    bias_differences = total * tf.gather(bias, targets) - tf.reduce_sum(smoothing * bias)  # [tokens]
    weighted = attended * row_weights
    loss = tf.reduce_sum(weighted * differences) + tf.reduce_sum(weights * bias_differences)
    d_embeddings = column * -tf.reduce_sum(weighted, 0)
    d_bias = smoothing * -tf.reduce_sum(weights)
    d_embeddings = scatter_add(d_embeddings, target_rows, total * weighted, on_gpu)
    d_bias = scatter_add(d_bias, target_rows, total * weights, on_gpu)
    return (differences * row_weights,), (loss, d_embeddings, d_bias)


def _logits(attended: tf.Tensor, factor: tf.Tensor, bias: tf.Tensor, precision: str) -> tf.Tensor:
    """Return the logits, [tokens, vocabulary], with dtype bfloat16 if this is the precision, otherwise float32.

    bfloat16 halves the memory traffic. float16 is not used, because it would round probabilities below 6e-8 to 0.
    """
    if precision != "bfloat16":
        return matmul(attended, factor, precision, transpose_b=True) + bias
    products = tf.matmul(to_precision(attended, precision), factor, transpose_b=True)
    return tf.nn.bias_add(products, to_precision(bias, precision))
