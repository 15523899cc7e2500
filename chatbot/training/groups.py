"""Groups of variables whose values, gradients and slots are joined to vectors.

A GPU computes a vector of many megabytes as fast as one of a few kilobytes, but waits for the host, which starts each
operation. A group belongs to one stage of the backward pass, so that its gradient can be exchanged as soon as that
stage is over.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.training.optimizer import is_decayed

# Gradients are exchanged between CPUs in groups of at least this size. A smaller one would pay the latency of an
# exchange more often; with a larger one, the first gradients would wait longer for the others. It is also about what
# GPUs exchange in the time that a group costs them in addition (`least_bytes`).
GROUP_BYTES = 4 << 20

ENCODER = "encoder"
DECODER = "decoder"
PROJECTION = "projection"


class Group(NamedTuple):
    """Variables that are updated together. That of the embedding has no other variable."""

    stage: str  # of the forward pass: ENCODER, DECODER or PROJECTION
    indices: tuple[int, ...]  # among model.trainable_variables
    shapes: tuple[tuple[int, ...], ...]
    trained: bool  # not of a part that is frozen
    decayed: bool  # by --weight-decay

    def joined(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the tensors of the variables as one vector; that of a single variable as it is."""
        if len(tensors) == 1:
            return tensors[0]
        return tf.concat([_reshaped(tensor, [-1], len(tensor.shape) == 1) for tensor in tensors], 0)

    def divided(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        """Undo `joined`."""
        if len(self.shapes) == 1:
            return [tensor]
        parts = tf.split(tensor, [math.prod(shape) for shape in self.shapes])
        return [_reshaped(part, shape, len(shape) == 1) for part, shape in zip(parts, self.shapes, strict=True)]


def _reshaped(tensor: tf.Tensor, shape: Sequence[int], is_vector: bool) -> tf.Tensor:
    """Return a tensor in another shape; a vector that stays one as it is, without an operation."""
    return tensor if is_vector else tf.reshape(tensor, shape)


def groups_of(model: Seq2Seq, settings: LearningSettings, least_bytes: int) -> list[Group]:
    """Return the groups of all variables, in the order of the backward pass; the last one is the embedding's.

    least_bytes: variables of one stage are joined until their group has this size; 0 for a group for each variable.
    """
    variables = model.trainable_variables
    embedding = embedding_index(model)
    index = {id(variable): i for i, variable in enumerate(variables)}
    decoder, encoder = (
        [index[id(variable)] for variable in reversed(part.trainable_variables)]
        for part in (model.decoder, model.encoder)
    )
    parts = part_names(model)

    def group(stage: str, members: Sequence[int]) -> Group:
        shapes = tuple(tuple(variables[i].shape) for i in members)
        trained, decayed = kind(members[0])
        return Group(stage, tuple(members), shapes, trained, decayed)

    def kind(i: int) -> tuple[bool, bool]:
        return parts[i] not in settings.frozen, settings.weight_decay > 0 and is_decayed(variables[i])

    own = [i for i in range(len(variables)) if i not in {*decoder, *encoder, embedding}]
    groups = []
    for stage, members in ((PROJECTION, own), (DECODER, decoder), (ENCODER, encoder)):
        open_groups: dict[tuple[bool, bool], list[int]] = {}
        for i in members:
            # A variable that is large enough is not joined with others, which would copy it.
            joined = [i] if size_of(variables[i]) >= least_bytes else [*open_groups.pop(kind(i), []), i]
            if sum(size_of(variables[j]) for j in joined) >= least_bytes:
                groups.append(group(stage, joined))
            else:
                open_groups[kind(i)] = joined
        groups += [group(stage, joined) for joined in open_groups.values()]
    return [*groups, group(PROJECTION, [embedding])]


def size_of(variable: tf.Variable) -> int:
    """Return the bytes of a variable, which is float32."""
    return 4 * math.prod(variable.shape)


def least_bytes(model: Seq2Seq, on_gpus: bool, is_exchanged: bool) -> int:
    """Return the size of groups. is_exchanged: whether the gradients of several replicas are added.

    On CPUs, an update of many variables costs no more than that of one, so that without an exchange none are joined.

    Between GPUs, a group costs time beside its exchange, since NCCL calls the host back after it; but the last group is
    exchanged when the backward pass is over, so that a large one delays the update. If that time is the one of an
    exchange of GROUP_BYTES, n equal groups cost n * GROUP_BYTES + total / n, the least where total / n is the geometric
    mean of both.
    """
    if on_gpus:
        total = sum(map(size_of, model.trainable_variables))
        return max(GROUP_BYTES, math.isqrt(total * GROUP_BYTES))
    return GROUP_BYTES if is_exchanged else 0


def part_names(model: Seq2Seq) -> list[str]:
    """Return the part of the model that each of model.trainable_variables belongs to, as --freeze names it."""
    part_of = {id(variable): "encoder" for variable in model.encoder.trainable_variables}
    part_of |= {id(variable): "decoder" for variable in model.decoder.trainable_variables}
    if model.decoder.attention is not None:
        part_of |= {id(variable): "attention" for variable in model.decoder.attention.trainable_variables}
    part_of[id(model.embedding.embeddings)] = "embedding"
    return [part_of.get(id(variable), "projection") for variable in model.trainable_variables]
