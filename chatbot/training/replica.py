"""The weights that are trained, in groups, with their optimizer slots and average.

The values, gradients and slots of a group of variables are joined to vectors. A GPU computes a vector of many megabytes
as fast as one of a few kilobytes, but waits for the host, which starts each operation. A group belongs to one stage of
the backward pass, so that its gradient can be exchanged as soon as that stage is over.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.training.optimizer import (
    Clipped,
    LossScale,
    Scalars,
    apply_update,
    average_and_clip,
    is_decayed,
    make_slots,
    update_average,
    update_scalars,
)

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


# Arrays of a checkpoint.
Values = Sequence[npt.NDArray[Any]]


class TrainState(NamedTuple):
    """What a checkpoint has beside the weights of the model."""

    optimizer: Values  # the number of updates, and the slots
    trained: Values = ()  # with --average the weights that are trained, since those of the model are averages
    loss_scale: Values = ()  # in float16, of `LossScale`
    pending: Values = ()  # with --staged-variables the gradients of the last step, their tokens and their loss scale


class Inputs(NamedTuple):
    """What the gradient function takes of a replica."""

    weights: list[tf.Tensor]  # of each group
    loss_scale: tf.Tensor | None  # scalar float32, in float16


class Replica:
    """The weights that are trained, their slots, their average and the number of updates, each on its device.

    groups: of the model's variables. place: the device of all weights, or of each group; None: where the model's
    weights are. copies: train copies of the model's weights. keeps_average: keep the moving average of --average, as
    one of several equal replicas does.
    weights: of each group. They are the model's own for a group of one variable, unless copies are trained or averages
    kept, which are then in the model's weights; `gather_state` copies what is not there.
    calls: of `apply`, with those that updated nothing.
    """

    def __init__(
        self,
        model: Seq2Seq,
        settings: LearningSettings,
        groups: Sequence[Group],
        place: str | Sequence[str] | None = None,
        copies: bool = False,
        keeps_average: bool = True,
    ) -> None:
        self._own = [v.value for v in model.trainable_variables]
        self._settings = settings
        self.groups = groups
        if place is None:
            place = [self._own[group.indices[0]].device for group in groups]
        self.devices = [place] * len(groups) if isinstance(place, str) else list(place)
        self.weights = self._variables(copies or settings.average > 0)
        self._averages = self._variables(copies) if settings.average and keeps_average else []
        self.trained = [i for i, group in enumerate(groups) if group.trained]
        self._slots = {i: make_slots(settings.optimizer, self.weights[i]) for i in self.trained}
        with tf.device(self.home):
            self.updates = tf.Variable(0, trainable=False, dtype=tf.int64)
            self.calls = tf.Variable(0, trainable=False, dtype=tf.int64)
            self.loss_scale = LossScale() if model.precision == "float16" else None

    def _variables(self, copies: bool) -> list[tf.Variable]:
        """Return a variable for each group: the model's own, a copy, or a vector."""
        variables = []
        for group, device in zip(self.groups, self.devices, strict=True):
            own = [self._own[i] for i in group.indices]
            if len(own) == 1 and not copies:
                variables += own
            else:
                with tf.device(device):
                    variables.append(tf.Variable(group.joined(own)))
        return variables

    @property
    def home(self) -> str:
        """The device of the largest weight, on which scalars are computed."""
        sizes = [weight.shape.num_elements() for weight in self.weights]
        return self.devices[sizes.index(max(sizes))]

    def read(self) -> Inputs:
        """Return a copy of the weights and the loss scale."""
        with tf.device(self.home):
            scale = None if self.loss_scale is None else self.loss_scale.read()
        weights = []
        for weight, device in zip(self.weights, self.devices, strict=True):
            with tf.device(device):
                weights.append(tf.identity(weight))
        return Inputs(weights, scale)

    def apply(
        self, sums: Sequence[tf.Tensor], tokens: tf.Tensor, rate: tf.Tensor, loss_scale: tf.Tensor | None = None
    ) -> Clipped:
        """Update every weight that is trained once, or nothing if the loss or a gradient is not finite.

        sums: gradients of the loss sum, one for each group that is trained. tokens: as for `average_and_clip`.
        loss_scale: in float16, that of the gradients; this updates the replica's.
        """
        with tf.device(self.home):
            clipped = average_and_clip(sums, tokens, self._settings.max_gradient_norm, loss_scale)
            # Counted after all gradients are computed and before any weight changes: if the count is unchanged after
            # an error, so are the weights.
            with tf.control_dependencies([clipped.norm]):
                called = self.calls.assign_add(1, read_value=False)
            with tf.control_dependencies([called]):
                number = self.updates.assign_add(tf.cast(clipped.finite, tf.int64), read_value=True)
            scalars = update_scalars(rate, number, clipped.finite)
            if self.loss_scale is not None and loss_scale is not None:
                with tf.control_dependencies([number]):
                    self.loss_scale.update(loss_scale, clipped.finite, clipped.overflow)
        for i, gradient in zip(self.trained, clipped.gradients, strict=True):
            with tf.device(self.devices[i]):
                with tf.control_dependencies([number]):
                    update = self.update_group(i, gradient, scalars)
                if self._averages:
                    with tf.control_dependencies([update]):
                        decay = self._settings.average
                        update_average(self._averages[i], self.weights[i], decay, number, scalars.applied)
        return clipped

    def update_group(self, i: int, gradient: tf.Tensor, scalars: Scalars) -> tf.Operation:
        """Update the weights of group i, which is trained, and their slots."""
        decayed = self.groups[i].decayed
        return apply_update(self._settings, self.weights[i], self._slots[i], gradient, scalars, decayed)

    def gather_state(self) -> TrainState:
        """Copy the weights, averaged with --average, into the model; return the rest of a checkpoint."""
        for own, value in zip(self._own, self.of_variables(self._averages or self.weights), strict=True):
            if own is not value:
                own.assign(value)
        trained = self.of_variables(self.weights) if self._settings.average else []
        slots = [self.of_variables(of_kind, self.trained) for of_kind in zip(*self._slots.values(), strict=True)]
        return TrainState(
            [self.updates.numpy(), *(slot.numpy() for of_variable in zip(*slots, strict=True) for slot in of_variable)],
            [weight.numpy() for weight in trained],
            [self.loss_scale.gather_state()] if self.loss_scale else [],
        )

    def scatter_state(self, state: TrainState) -> None:
        """Set the weights to the model's, and the rest to `state` as `gather_state` returns it."""
        self._assign(self._averages, self._own)
        self._assign(self.weights, state.trained if self._settings.average else self._own)
        updates, *slots = state.optimizer
        self.updates.assign(updates)
        kinds = [*zip(*self._slots.values(), strict=True)]
        for kind, variables in enumerate(kinds):
            self._assign(variables, slots[kind :: len(kinds)], self.trained)
        if self.loss_scale:
            self.loss_scale.scatter_state(*state.loss_scale)

    def of_variables(self, tensors: Sequence[Any], numbers: Sequence[int] | None = None) -> list[Any]:
        """Return the tensor of each variable, in the order of model.trainable_variables.

        tensors: of each group. numbers: of the groups, if they are not all.
        """
        found: dict[int, Any] = {}
        for number, tensor in zip(numbers or range(len(self.groups)), tensors, strict=True):
            group = self.groups[number]
            found |= zip(group.indices, group.divided(tensor), strict=True)
        return [found[i] for i in sorted(found)]

    def _assign(
        self, variables: Sequence[tf.Variable], values: Sequence[Any], numbers: Sequence[int] | None = None
    ) -> None:
        """Set a variable of each group, none if there are none, to the values that `of_variables` would return."""
        groups = [self.groups[number] for number in numbers or range(len(self.groups))]
        value_of = dict(zip(sorted(i for group in groups for i in group.indices), values, strict=True))
        for group, variable in zip(groups, variables, strict=bool(variables)):
            own = [value_of[i] for i in group.indices]
            if own[0] is not variable:
                variable.assign(group.joined(own))
