"""The sums of gradients over towers and replicas, exchanged while the backward pass goes on."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from chatbot.model.operations import is_gpu, placed_on
from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.training.devices.towers import Tower
from chatbot.training.exchange import Exchange
from chatbot.training.gradients import Sums, dense
from chatbot.training.variable_update.replica import Replica

# Gradients of one stage are exchanged together up to this size between CPUs. A smaller one would pay the latency of an
# exchange more often; with a larger one, the first gradients would wait longer for the others. It is also about what
# GPUs exchange in the time that a group costs them in addition (`group_bytes`).
GROUP_BYTES = 4 << 20


class Summation:
    """Sums gradients over the towers of each replica, then over the replicas of all processes.

    replicas: those of this process, each with its towers. exchange: None if replicas do not exchange gradients.
    """

    def __init__(
        self, model: Seq2Seq, replicas: Sequence[tuple[Replica, Sequence[Tower]]], exchange: Exchange | None
    ) -> None:
        self._replicas, self._exchange = list(replicas), exchange
        self._embedding = embedding_index(model)
        self._groups = exchange_groups(model, is_gpu(self._replicas[0][0].home))

    def __call__(
        self, sums: Sequence[Sums], report: tf.Tensor, used: tf.Tensor
    ) -> list[tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]]:
        """Return for each replica the gradients, target tokens and report, summed over all towers.

        sums: of each tower of this process. report: of this process, of any shape. used: [used] int64, `ids_used`.
        The tokens are NaN if the loss of a tower is not finite.
        The gradients are dense, in the order of model.trainable_variables.
        """
        parts, remaining = [], list(sums)
        for i, (replica, towers) in enumerate(self._replicas):
            of_replica, remaining = remaining[: len(towers)], remaining[len(towers) :]
            *others, of_embedding = self._devices_of(replica)
            with tf.device(of_embedding):
                projection = [tf.add_n(terms) for terms in zip(*(s.projection for s in of_replica), strict=True)]
                rows = tf.add_n([s.rows for s in of_replica])
            gradients = []
            for device, *terms in zip(others, *(s.others for s in of_replica), strict=True):
                with tf.device(device):
                    gradients.append(tf.add_n(terms))
            with tf.device(replica.home):
                tokens = tf.add_n([counted_tokens(s) for s in of_replica])
                replica_report = tf.identity(report) if i == 0 else tf.zeros_like(report)
            parts.append([*projection, *gradients, rows, tokens, replica_report])
        totals = []
        for (replica, _), total in zip(self._replicas, self._exchanged(parts), strict=True):
            *gradients, rows, tokens, total_report = total
            *others, of_embedding = self._devices_of(replica)
            projection, gradients = gradients[: -len(others)], gradients[-len(others) :]
            with placed_on(of_embedding):
                shape = replica.weights[self._embedding].shape
                gradients.insert(self._embedding, dense(projection, rows, used, shape))
            totals.append((gradients, tokens, total_report))
        return totals

    def _devices_of(self, replica: Replica) -> list[str]:
        """Return the devices of the weights in the order of the fields of `Sums`: the embedding is the last."""
        others = [device for i, device in enumerate(replica.devices) if i != self._embedding]
        return [*others, replica.devices[self._embedding]]

    def _exchanged(self, parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
        """Return the sums over the replicas of all processes, [replica][tensor]."""
        if self._exchange is None:
            return parts
        totals: list[list[Any]] = [[None] * len(part) for part in parts]
        for group in self._groups:
            for total, summed in zip(totals, self._exchange([[p[i] for i in group] for p in parts]), strict=True):
                for i, tensor in zip(group, summed, strict=True):
                    total[i] = tensor
        return totals


def counted_tokens(sums: Sums) -> tf.Tensor:
    """Return the target tokens of a tower, or NaN if its loss is not finite, by which all replicas skip the update."""
    return tf.where(tf.math.is_finite(sums.loss), sums.weight, float("nan"))


def exchange_groups(model: Seq2Seq, on_gpus: bool) -> list[list[int]]:
    """Return groups of indices into [projection, *others, rows, tokens, report], each to be exchanged in one operation.

    The first four are fields of `Sums`; projection is absent unless model.projects_by_embedding. A group depends on one
    stage of the backward pass only: the projection, then the decoder, its last layer first, then the encoder, and last
    the rows of the embedding.

    on_gpus: whether the replicas are on GPUs.
    """
    projection = int(model.projects_by_embedding)
    others = [v for v in model.trainable_variables if v is not model.embedding.embeddings]
    index = {id(variable): projection + i for i, variable in enumerate(others)}
    rows = projection + len(others)
    sizes = {index[id(variable)]: 4 * int(variable.value.shape.num_elements()) for variable in others}
    layers = [[index[id(v)] for v in reversed(part.trainable_variables)] for part in (model.decoder, model.encoder)]
    size = group_bytes(sum(sizes[i] for layer in layers for i in layer), on_gpus)
    own = [model.bias] if model.tied else [model.bias, model.projection]
    stages = [[rows + 1, rows + 2, *range(projection), *(index[id(variable)] for variable in own)]]
    return [*stages, *(group for layer in layers for group in grouped(layer, sizes, size, on_gpus)), [rows]]


def group_bytes(total: int, on_gpus: bool) -> int:
    """Return the size of a group. total: bytes of all gradients that are divided into groups.

    A group costs GPUs time beside its exchange: TensorFlow goes on when NCCL has called the host back after the GPU has
    finished. Many small groups pay that often; but the last group is exchanged when the backward pass is over, so that
    a large one delays the update. If the additional time of a group is that of an exchange of GROUP_BYTES, n equal
    groups cost as much as an exchange of n * GROUP_BYTES + total / n, the least where total / n is the geometric mean
    of total and GROUP_BYTES. The first groups are exchanged as early as small ones: they wait for no other stage.
    """
    return max(GROUP_BYTES, math.isqrt(total * GROUP_BYTES)) if on_gpus else GROUP_BYTES


def grouped(indices: Sequence[int], sizes: Mapping[int, int], size: int, on_gpus: bool) -> list[list[int]]:
    """Divide indices into groups of about a size, in their order.

    Between CPUs, a group has at most this size, or one index. On GPUs it has at least this size, unless it is the last,
    so that no small gradient is exchanged alone between two large ones.
    """
    groups: list[list[int]] = [[]]
    for index in indices:
        present = sum(sizes[i] for i in groups[-1])
        if groups[-1] and (present >= size if on_gpus else present + sizes[index] > size):
            groups.append([])
        groups[-1].append(index)
    return groups
