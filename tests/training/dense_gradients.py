"""The gradients of a tower, dense and in the order of the model's variables."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.corpus.batches import Batch, GlobalBatch
from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.training.gradients import Sums, dense, gradient_function
from chatbot.training.share import Preparation, Prepared, Share


def dense_gradients(
    model: Seq2Seq,
    batch: Batch,
    values: Sequence[tf.Tensor] | None = None,
    device: str = "/CPU:0",
    function: Any = None,
    loss_scale: float | None = None,
) -> tuple[Sums, list[tf.Tensor]]:
    """The sums of a batch, and the gradients. values: of the model's variables, by default their own.

    function: `gradient_function` of the model, to trace it once for several calls.
    """
    values = [variable.value for variable in model.trainable_variables] if values is None else list(values)
    prepare = Preparation(model, 1, [device])
    prepared = prepare(whole_batch(batch), 0)
    with tf.device(device):
        inputs = values, prepare.tensors(prepared.shares[0][0]), tf.shape(prepared.used)[0]
        scale = None if loss_scale is None else tf.constant(loss_scale)
        sums: Any = (function or gradient_function(model, device))(*inputs, *([] if scale is None else [scale]))
        gradients = list(sums.others)
        embedding = dense(sums.projection, sums.rows, prepared.used, model.embedding.embeddings.shape)
    gradients.insert(embedding_index(model), embedding)
    return sums, gradients


def whole_batch(batch: Batch) -> GlobalBatch:
    """A global batch of one share."""
    ids = np.unique(np.concatenate([array.ravel() for array in batch[:3]] + [[0]])).astype(np.int64)
    return GlobalBatch((batch,), len(batch.source), ids)


def shares_of(prepared: Prepared) -> list[Share]:
    """The shares of towers on CPUs, piece by piece: those for GPUs are in buffers."""
    return [share for piece in prepared.shares for share in piece if isinstance(share, Share)]
