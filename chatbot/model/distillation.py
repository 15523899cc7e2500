"""The loss of a model that learns the distributions of other models beside the targets (Hinton et al., 2015)."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from chatbot.model.copying import NO_COPIES, Copies, with_copies
from chatbot.model.fast.projection import LossSize, OfTokens, OfWeights, in_chunks, part_of
from chatbot.model.matmul import matmul

# Tokens, None for all -> the probabilities that are taught for them, [tokens, vocabulary].
Taught = Callable[[slice | None], tf.Tensor]


def distillation_loss(
    attended: tf.Tensor,
    embeddings: tf.Tensor,
    bias: tf.Tensor,
    targets: tf.Tensor,
    weights: tf.Tensor,
    taught: Taught,
    share: float,
    precision: str = "float32",
    size: LossSize = LossSize(),  # noqa: B008  # immutable
    copies: Copies | tuple[()] = NO_COPIES,
    question: tf.Tensor | tuple[()] = (),
    spellings: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return a weighted sum in nats: scalar float32.

    The loss of a token is (1 - share) * the cross-entropy of its target + share * the cross-entropy of the
    probabilities that are taught for it.

    The other arguments are those of `projection_loss`, and for a model that copies those of `with_copies`. Tokens are
    computed in chunks as there: the distributions of a chunk are in memory at a time, and its gradient with them.
    """

    @tf.custom_gradient
    def run(attended: tf.Tensor, embeddings: tf.Tensor, bias: tf.Tensor, *copies: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def chunk_at(part: slice | None) -> tuple[OfTokens, OfWeights]:
            of_tokens = tuple(part_of(x, part) for x in (attended, *copies))
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch((of_tokens, embeddings, bias))
                logits = matmul(of_tokens[0], embeddings, precision, transpose_b=True) + bias
                if copies:
                    log_probabilities = with_copies(
                        logits, Copies(*of_tokens[1:]), part_of(question, part), spellings
                    )  # [tokens, vocabulary]
                else:
                    log_probabilities = tf.nn.log_softmax(logits)
                of_targets = tf.gather(log_probabilities, part_of(targets, part), batch_dims=1)
                of_taught = tf.reduce_sum(taught(part) * log_probabilities, -1)
                losses = -(1.0 - share) * of_targets - share * of_taught
                loss = tf.reduce_sum(losses * part_of(weights, part))
            d_of_tokens, d_embeddings, d_bias = tape.gradient(loss, (of_tokens, embeddings, bias))
            return d_of_tokens, (loss, d_embeddings, d_bias)

        chunk_tokens = size.chunk_tokens(*embeddings.shape)
        (d_attended, *d_copies), (loss, d_embeddings, d_bias) = in_chunks(
            chunk_at, (attended, *copies), chunk_tokens, size.most_tokens
        )
        gradients = d_attended, d_embeddings, d_bias, *d_copies
        return loss, lambda upstream: tuple(upstream * gradient for gradient in gradients)

    return run(attended, embeddings, bias, *copies)
