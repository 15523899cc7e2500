"""The gradients of a tower, dense and in the order of the model's variables."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.corpus.batches import Batch, GlobalBatch
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.gradients import Sums, dense, gradient_function
from chatbot.training.replica import Group, group_variables
from chatbot.training.share import Preparation, Prepared, Share


def dense_gradients(
    model: Seq2Seq,
    batch: Batch,
    values: Sequence[tf.Tensor] | None = None,
    device: str = "/CPU:0",
    function: Any = None,
    loss_scale: float | None = None,
    min_group_bytes: int = 0,
) -> tuple[Sums, list[tf.Tensor]]:
    """The sums of a batch, and the gradients. values: of the model's variables, by default their own.

    function: `gradient_function` of the model, to trace it once for several calls.
    """
    values = [variable.value for variable in model.trainable_variables] if values is None else list(values)
    prepare = Preparation(model, 1, [device])
    ((buffer,),) = prepare.device_shares(prepare(whole_batch(batch), 0))
    groups = group_variables(model, LearningSettings(), min_group_bytes)
    with tf.device(device):
        share = prepare.tensors(buffer)
        inputs = [group.join([values[i] for i in group.indices]) for group in groups], share
        scale = None if loss_scale is None else tf.constant(loss_scale)
        sums: Any = (function or gradient_function(model, groups))(*inputs, *([] if scale is None else [scale]))
        embedding = dense(sums.projection, sums.rows, share.lookup_ids, model.embedding.embeddings.shape, model.on_gpu)
    of_variable: dict[int, tf.Tensor] = {}
    for group, gradient in zip(groups, [*sums.groups, embedding], strict=True):
        of_variable |= zip(group.indices, group.split(gradient), strict=True)
    return sums, [of_variable[i] for i in range(len(values))]


def single_groups(model: Seq2Seq) -> list[Group]:
    """A group for each variable."""
    return group_variables(model, LearningSettings(), 0)


def whole_batch(batch: Batch) -> GlobalBatch:
    """A global batch of one share."""
    ids = np.unique(np.concatenate([array.ravel() for array in batch[:3]] + [[0]])).astype(np.int64)
    return GlobalBatch((batch,), len(batch.source), ids)


def shares_of(prepared: Prepared) -> list[Share]:
    """The shares of towers on CPUs, piece by piece: those for GPUs are in buffers."""
    return [share for piece in prepared.shares for share in piece if isinstance(share, Share)]
