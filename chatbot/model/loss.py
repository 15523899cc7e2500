"""The cross-entropy, fused with the projection onto the vocabulary.

Instead of the logits of all positions it keeps those of a chunk, from which the gradient is computed immediately, as in
Liger's fused linear cross-entropy (Hsu et al., 2024).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from chatbot.model.operations import matmul, rounded, scatter_add

Floats = npt.NDArray[np.floating]
# Logits in memory at a time on a device of unknown memory: 64 MB of float32.
LOGITS = 1 << 24
# The most logits of a call, whatever the memory: kernels of TensorFlow index with 32 bits, such as that of
# SparseSoftmaxCrossEntropyWithLogits.
MOST_ELEMENTS = (1 << 31) - 1
# About the smallest normal float32. The loss of a less probable target is computed from its logits.
SMALLEST_PROBABILITY = 2e-38


def logits_in(memory: int | None) -> int:
    """Return how many logits a device should hold at a time. memory: of the device in bytes, None if unknown.

    About three tensors of this size are in memory at once. They may take a fifth of it.
    """
    return LOGITS if memory is None else min(max(LOGITS, memory // (5 * 3 * 4)), MOST_ELEMENTS)


class LossSize(NamedTuple):
    """Limits of the loss.

    logits: the number of logits in memory at a time. most_tokens: of a call; None if unknown.
    """

    logits: int = LOGITS
    most_tokens: int | None = None

    def chunk_tokens(self, vocabulary: int, units: int) -> int:
        """Return the number of tokens in a chunk.

        At least as many as units, since each chunk adds a gradient of the size of the embeddings to their sum.
        """
        return max(1, min(max(units, self.logits // vocabulary), MOST_ELEMENTS // vocabulary))


def projection_loss(
    attended: tf.Tensor,
    embeddings: tf.Tensor,
    bias: tf.Tensor,
    targets: tf.Tensor,
    weights: tf.Tensor,
    precision: str = "float32",
    size: LossSize = LossSize(),  # noqa: B008  # immutable
    mixture: tuple[tf.Tensor, ...] = (),
    smoothing: Floats | None = None,
    on_gpu: bool = False,
) -> tf.Tensor:
    """Return the weighted cross-entropy in nats, summed: scalar float32.

    The logits are attended embeddings^T + bias. With a mixture (log_generate, log_copied), both [tokens], the
    probability of a target is exp(log_generate) softmax(logits)[target] + exp(log_copied). smoothing, without a
    mixture: [vocabulary], what each token gets of a target's probability (label smoothing, Szegedy et al., 2016).

    attended [tokens, units], embeddings [vocabulary, units], bias [vocabulary], targets [tokens] int64,
    weights [tokens]. Tokens are computed in chunks of the given size.
    """
    chunk_tokens = size.chunk_tokens(*embeddings.shape)

    @tf.custom_gradient
    def run(attended: tf.Tensor, embeddings: tf.Tensor, bias: tf.Tensor, *mixture: tf.Tensor) -> tuple[tf.Tensor, Any]:
        factor = rounded(embeddings, precision)
        plain = _chunk_on_gpu if on_gpu else _chunk

        tokens = Tokens(attended, targets, weights, mixture)

        def chunk_at(part: slice | None) -> tuple[OfTokens, OfWeights]:
            chunk = tokens if part is None else tf.nest.map_structure(lambda x: x[part], tokens)
            results = plain(chunk, factor, bias, precision)
            if smoothing is None:
                return results
            terms = _smoothing_terms(chunk, factor, bias, smoothing, on_gpu)
            return tf.nest.map_structure(tf.add, results, terms)

        (d_attended, *d_mixture), (loss, d_embeddings, d_bias) = in_chunks(
            chunk_at, (attended, *mixture), chunk_tokens, size.most_tokens
        )
        gradients = d_attended, d_embeddings, d_bias, *d_mixture
        return loss, lambda upstream: tuple(upstream * gradient for gradient in gradients)

    return run(attended, embeddings, bias, *mixture)


class Tokens(NamedTuple):
    """The tokens of a call, or of a chunk, [tokens, ...] each."""

    attended: tf.Tensor
    targets: tf.Tensor
    weights: tf.Tensor
    mixture: tuple[tf.Tensor, ...]


# Gradients of a chunk's loss with respect to attended and the mixture, [tokens, ...] each.
OfTokens = tuple[tf.Tensor, ...]
# A chunk's loss, and its gradients with respect to the embeddings and the bias.
OfWeights = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def in_chunks(
    chunk_at: Callable[[slice | None], tuple[OfTokens, OfWeights]],
    of_tokens: tuple[tf.Tensor, ...],
    chunk_tokens: int,
    most_tokens: int | None,
) -> tuple[OfTokens, OfWeights]:
    """Return the gradients and the sums of all tokens.

    chunk_at: computes those of a part of the tokens, None for all. of_tokens: the tensors, [tokens, ...] each, whose
    gradients are the first result. most_tokens: see `LossSize`.
    """
    tokens = tf.shape(of_tokens[0])[0]

    def add(start: tf.Tensor, gradients: OfTokens, sums: OfWeights) -> tuple[Any, ...]:
        of_chunk, chunk_sums = chunk_at(slice(start, start + chunk_tokens))
        gradients = tuple(tf.concat(parts, 0) for parts in zip(gradients, of_chunk, strict=True))
        return start + chunk_tokens, gradients, tuple(a + b for a, b in zip(sums, chunk_sums, strict=True))

    if most_tokens is not None and most_tokens <= chunk_tokens:
        return chunk_at(None)  # no loop, for whose condition the host would wait on a GPU
    # Most batches are one chunk. It is computed before the loop, which saves adding it to zeros.
    state = tf.constant(chunk_tokens), *chunk_at(slice(0, chunk_tokens))
    shapes = tf.nest.map_structure(lambda x: x.shape, state)
    of_all = tuple(tf.TensorShape([None, *x.shape[1:]]) for x in state[1])
    _, gradients, sums = tf.while_loop(
        lambda start, *_: start < tokens, add, state, (shapes[0], of_all, shapes[2]), parallel_iterations=1
    )
    return tuple(tf.ensure_shape(d, x.shape) for d, x in zip(gradients, of_tokens, strict=True)), sums


def _mixed(losses: tf.Tensor, chunk: Tokens) -> tuple[tf.Tensor, tf.Tensor, tuple[tf.Tensor, ...]]:
    """Return the losses under a mixture, the weights of the losses' gradients, and the gradients of the mixture.

    losses: [tokens], those of the softmax. A token's gradient is that of the softmax, times the probability that the
    target was generated.
    """
    if not chunk.mixture:
        return losses, chunk.weights, ()
    log_generate, log_copied = chunk.mixture
    difference = log_generate - losses - log_copied  # of the log-probabilities: generated, copied
    generated = tf.sigmoid(difference) * chunk.weights
    return -log_copied - tf.nn.softplus(difference), generated, (-generated, generated - chunk.weights)


def _chunk_on_gpu(chunk: Tokens, factor: tf.Tensor, bias: tf.Tensor, precision: str) -> tuple[OfTokens, OfWeights]:
    """Return what `_chunk` returns, by one fused operation, which is exact for every target.

    On a GPU, `_chunk` would make the host wait for the number of targets that underflow. On a CPU, this operation takes
    eight times as long as a softmax.
    """
    attended = chunk.attended
    targets = chunk.targets
    logits = matmul(attended, factor, precision, transpose_b=True) + bias  # [tokens, vocabulary] float32
    if is_op_determinism_enabled():  # the fused operation refuses to run
        log_probabilities = tf.nn.log_softmax(logits)
        losses = -tf.gather(log_probabilities, targets, batch_dims=1)
        d_logits = tf.exp(log_probabilities) - tf.one_hot(targets, logits.shape[1])
    else:
        losses, d_logits = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=targets)
    losses, generated, d_mixture = _mixed(losses, chunk)
    d_logits = rounded(d_logits, precision)
    row_weights = generated[:, None]
    d_attended = matmul(d_logits, factor, precision) * row_weights
    d_embeddings = matmul(d_logits, attended * row_weights, precision, transpose_a=True)
    d_bias = matmul(row_weights, d_logits, precision, transpose_a=True)[0]
    return (d_attended, *d_mixture), (tf.reduce_sum(losses * chunk.weights), d_embeddings, d_bias)


def _chunk(chunk: Tokens, factor: tf.Tensor, bias: tf.Tensor, precision: str) -> tuple[OfTokens, OfWeights]:
    """Return the loss of a chunk of tokens and its gradients.

    factor: the embeddings, rounded to the precision.
    """
    attended = chunk.attended
    targets = chunk.targets
    probabilities = tf.nn.softmax(_logits(attended, factor, bias, precision))  # [tokens, vocabulary]
    target_probabilities = tf.cast(tf.gather(probabilities, targets, batch_dims=1), attended.dtype)  # [tokens]
    underflowed = tf.where(~(target_probabilities > SMALLEST_PROBABILITY))  # [few, 1], NaN included
    logits = _logits(tf.gather_nd(attended, underflowed), factor, bias, precision)  # [few, vocabulary]
    logits = tf.cast(logits, attended.dtype)
    exact = tf.reduce_logsumexp(logits, -1) - tf.gather(logits, tf.gather_nd(targets, underflowed), batch_dims=1)
    losses = tf.tensor_scatter_nd_update(-tf.math.log(target_probabilities), underflowed, exact)
    probabilities = rounded(probabilities, precision)
    # The gradient with respect to the logits is probabilities - one_hot(targets). The second term only selects rows,
    # so no one-hot matrix is built.
    losses, generated, d_mixture = _mixed(losses, chunk)
    target_rows = targets[:, None]
    row_weights = generated[:, None]
    target_factors = tf.cast(tf.gather_nd(factor, target_rows), attended.dtype)  # [tokens, units]
    d_attended = (matmul(probabilities, factor, precision) - target_factors) * row_weights
    weighted = attended * row_weights
    d_embeddings = matmul(probabilities, weighted, precision, transpose_a=True)
    d_embeddings = tf.tensor_scatter_nd_sub(d_embeddings, target_rows, weighted)
    d_bias = tf.tensor_scatter_nd_sub(matmul(generated[None], probabilities, precision)[0], target_rows, generated)
    return (d_attended, *d_mixture), (tf.reduce_sum(losses * chunk.weights), d_embeddings, d_bias)


def _smoothing_terms(
    chunk: Tokens, factor: tf.Tensor, bias: tf.Tensor, smoothing: Floats, on_gpu: bool
) -> tuple[OfTokens, OfWeights]:
    """Return what label smoothing adds to the results of a chunk without a mixture.

    Its loss is the sum of weight * smoothing * (the target's logit - the token's) over all tokens of the vocabulary. It
    is linear in the logits, so the mean is that of the embeddings and needs no logits.
    """
    attended, targets, weights, _ = chunk
    factor = tf.cast(factor, attended.dtype)
    share = float(smoothing.sum())
    column = tf.constant(smoothing[:, None], bias.dtype)
    target_rows = targets[:, None]
    row_weights = weights[:, None]
    mean = tf.matmul(column, factor, transpose_a=True)  # [1, units], times the share
    differences = share * tf.gather_nd(factor, target_rows) - mean  # [tokens, units]
    bias_differences = share * tf.gather(bias, targets) - tf.reduce_sum(smoothing * bias)  # [tokens]
    weighted = attended * row_weights
    loss = tf.reduce_sum(weighted * differences) + tf.reduce_sum(weights * bias_differences)
    d_embeddings = column * -tf.reduce_sum(weighted, 0)
    d_bias = smoothing * -tf.reduce_sum(weights)
    d_embeddings = scatter_add(d_embeddings, target_rows, share * weighted, on_gpu)
    d_bias = scatter_add(d_bias, target_rows, share * weights, on_gpu)
    return (differences * row_weights,), (loss, d_embeddings, d_bias)


def _logits(attended: tf.Tensor, factor: tf.Tensor, bias: tf.Tensor, precision: str) -> tf.Tensor:
    """Return the logits, [tokens, vocabulary]: bfloat16 at that precision, else float32.

    bfloat16 halves the memory traffic, as in PyTorch's autocast. float16 would round probabilities below 6e-8 to 0.
    """
    if precision != "bfloat16":
        return matmul(attended, factor, precision, transpose_b=True) + bias
    return tf.nn.bias_add(tf.matmul(rounded(attended, precision), factor, transpose_b=True), rounded(bias, precision))
