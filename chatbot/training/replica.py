"""Groups of trained weights, with their optimizer slots and moving averages.

All variables in a group are concatenated into one vector, and so are their gradients and slots. A few large vectors are
faster than many small ones on a GPU, where launching an operation often costs more than the computation.

Except on a single GPU, which exchanges nothing, the variables of a group belong to the same stage of the model. Their
gradient can therefore be exchanged as soon as the backward pass of this stage is finished.
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

# The minimum size of a group when CPUs exchange gradients. Smaller groups would need more exchanges, each with its
# latency. In larger groups, the first gradients would wait longer for the last. On GPUs, the minimum size also depends
# on the model (see `min_group_bytes`).
GROUP_BYTES = 4 << 20
# The minimum size on a single GPU, which exchanges nothing. Copying larger variables takes longer than more launches.
SINGLE_GPU_BYTES = 32 << 20

ENCODER = "encoder"
DECODER = "decoder"
PROJECTION = "projection"


class Group(NamedTuple):
    """Variables that are updated together. The embedding is always a group by itself."""

    stage: str  # stage of the forward pass: ENCODER, DECODER or PROJECTION
    indices: tuple[int, ...]  # indices into model.trainable_variables
    shapes: tuple[tuple[int, ...], ...]
    transposed: tuple[bool, ...]  # whether the vector contains the transpose of a matrix, which cuDNN needs
    trained: bool  # false if the variables are frozen
    decayed: bool  # whether --weight-decay applies

    @property
    def is_vector(self) -> bool:
        """Whether the variables are concatenated into one vector. A variable that is not transposed can be alone."""
        return self.transposed != (False,)

    def join(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Concatenate one tensor per variable into one vector, if the group is a vector."""
        if not self.is_vector:
            return tensors[0]
        stored = [tf.transpose(x) if moved else x for x, moved in zip(tensors, self.transposed, strict=True)]
        return tf.concat([x if len(x.shape) == 1 else tf.reshape(x, [-1]) for x in stored], 0)

    def split(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        """Split a vector from `join` into one tensor per variable."""
        if not self.is_vector:
            return [tensor]
        parts = []
        sizes = [math.prod(shape) for shape in self.shapes]
        for part, shape, moved in zip(tf.split(tensor, sizes), self.shapes, self.transposed, strict=True):
            stored = part if len(shape) == 1 else tf.reshape(part, shape[::-1] if moved else shape)
            parts.append(tf.transpose(stored) if moved else stored)
        return parts


def group_variables(model: Seq2Seq, settings: LearningSettings, min_bytes: int, by_stage: bool = True) -> list[Group]:
    """Group the trainable variables of a model in the order of the backward pass. The last group is the embedding.

    Args:
        model: The model with the variables.
        settings: The learning settings, which determine the frozen parts and the weight decay.
        min_bytes: The minimum size of a group in bytes, if there are enough variables; 0 creates a group for each
            variable.
        by_stage: Whether the variables of a group belong to the same stage.
    """
    variables = model.trainable_variables
    embedding = embedding_index(model)
    index = {id(variable): i for i, variable in enumerate(variables)}
    decoder, encoder = (
        [index[id(variable)] for variable in reversed(part.trainable_variables)]
        for part in (model.decoder, model.encoder)
    )
    parts = part_names(model)

    def make_group(stage: str, members: Sequence[int]) -> Group:
        shapes = tuple(tuple(variables[i].shape) for i in members)
        trained, decayed = kind(members[0])
        transposed = tuple(getattr(variables[i], "is_transposed", False) for i in members)
        return Group(stage, tuple(members), shapes, transposed, trained, decayed)

    def kind(i: int) -> tuple[bool, bool]:
        return parts[i] not in settings.frozen, settings.weight_decay > 0 and is_decayed(variables[i])

    projection = [i for i in range(len(variables)) if i not in {*decoder, *encoder, embedding}]
    stages = [(PROJECTION, projection), (DECODER, decoder), (ENCODER, encoder)]
    if not by_stage:
        stages = [(PROJECTION, [*projection, *decoder, *encoder])]
    groups = []
    for stage, members in stages:
        open_groups: dict[tuple[bool, bool], list[int]] = {}
        for i in members:
            # Concatenation copies the variables, so large variables are not grouped with others.
            joined = [i] if variable_bytes(variables[i]) >= min_bytes else [*open_groups.pop(kind(i), []), i]
            if sum(variable_bytes(variables[j]) for j in joined) >= min_bytes:
                groups.append(make_group(stage, joined))
            else:
                open_groups[kind(i)] = joined
        groups += [make_group(stage, joined) for joined in open_groups.values()]
    return [*groups, make_group(PROJECTION, [embedding])]


def variable_bytes(variable: tf.Variable) -> int:
    """Return the size of a float32 variable in bytes."""
    return 4 * math.prod(variable.shape)


def min_group_bytes(model: Seq2Seq, on_gpus: bool, is_exchanged: bool) -> int:
    """Return the minimum size of a group, in bytes.

    On CPUs, variables are only grouped if gradients are exchanged. Otherwise, updating many small variables is as fast
    as updating a large one.

    On GPUs, the size is a compromise. Each group adds overhead, because NCCL calls the host after each exchange. But
    large groups delay the update, because the last group is exchanged after the end of the backward pass. Assume that
    the overhead of a group equals the time to exchange GROUP_BYTES. Then n groups of equal size cost
    n * GROUP_BYTES + total / n. This cost is lowest if the group size, total / n, is the geometric mean of GROUP_BYTES
    and the total.

    Args:
        model: The model whose variables are grouped.
        on_gpus: Whether any tower is on a GPU.
        is_exchanged: Whether the gradients of several replicas are summed.
    """
    if on_gpus:
        total = sum(map(variable_bytes, model.trainable_variables))
        return max(GROUP_BYTES, math.isqrt(total * GROUP_BYTES))
    return GROUP_BYTES if is_exchanged else 0


def part_names(model: Seq2Seq) -> list[str]:
    """Return the model part that each trainable variable belongs to. The names are those of --freeze."""
    names = {id(variable): "encoder" for variable in model.encoder.trainable_variables}
    names |= {id(variable): "decoder" for variable in model.decoder.trainable_variables}
    if model.decoder.attention is not None:
        names |= {id(variable): "attention" for variable in model.decoder.attention.trainable_variables}
    names[id(model.embedding.embeddings)] = "embedding"
    return [names.get(id(variable), "projection") for variable in model.trainable_variables]


# The type of lists of arrays that are stored in a checkpoint.
Values = Sequence[npt.NDArray[Any]]


class TrainState(NamedTuple):
    """The training state in a checkpoint, besides the weights of the model."""

    optimizer: Values  # the number of updates, followed by the slots
    trained: Values = ()  # with --average: the trained weights, because the model contains their moving averages
    loss_scale: Values = ()  # the state of `LossScale` in float16
    pending: Values = ()  # with --staged-variables: gradients of the last step, number of tokens, loss scale


class Inputs(NamedTuple):
    """The state of a replica that the gradient function needs."""

    weights: list[tf.Tensor]  # one per group
    loss_scale: tf.Tensor | None  # scalar float32 in float16, else None


class Replica:
    """A replica of the trained weights, with optimizer slots, moving averages and the number of updates.

    If possible, the replica trains the variables of the model directly. Otherwise, it trains separate variables, which
    `gather_state` copies into the model. Separate variables are needed for groups of several variables, for moving
    averages, and if `copies` is true.

    Args:
        model: The model.
        settings: The learning settings, with the optimizer and the moving average.
        groups: The groups of the model's variables.
        place: The device of all weights, or a list with one device per group; None for the devices of the model's
            weights.
        copies: Whether to train copies of the model's weights.
        keep_average: Whether to compute the moving averages of --average. One of several equal replicas suffices.

    Attributes:
        weights: The weights, one variable per group.
        updates: The number of applied updates, int64.
        calls: The number of calls of `apply`, including those that skipped the update, int64.
    """

    def __init__(
        self,
        model: Seq2Seq,
        settings: LearningSettings,
        groups: Sequence[Group],
        place: str | Sequence[str] | None = None,
        copies: bool = False,
        keep_average: bool = True,
    ) -> None:
        self._model_weights = [v.value for v in model.trainable_variables]
        self._settings = settings
        self.groups = groups
        if place is None:
            place = [self._model_weights[group.indices[0]].device for group in groups]
        self.devices = [place] * len(groups) if isinstance(place, str) else list(place)
        self.weights = self._variables(copies or settings.average > 0)
        self._averages = self._variables(copies) if settings.average and keep_average else []
        self.trained = [i for i, group in enumerate(groups) if group.trained]
        self._slots = {i: make_slots(settings.optimizer, self.weights[i]) for i in self.trained}
        with tf.device(self.home):
            self.updates = tf.Variable(0, trainable=False, dtype=tf.int64)
            self.calls = tf.Variable(0, trainable=False, dtype=tf.int64)
            self.loss_scale = LossScale() if model.precision == "float16" else None

    def _variables(self, copies: bool) -> list[tf.Variable]:
        """Return one variable per group: the variable of the model, a copy of it, or a concatenated vector."""
        variables = []
        for group, device in zip(self.groups, self.devices, strict=True):
            weights = [self._model_weights[i] for i in group.indices]
            if not (group.is_vector or copies):
                variables += weights
            else:
                with tf.device(device):
                    variables.append(tf.Variable(group.join(weights)))
        return variables

    @property
    def home(self) -> str:
        """The device of the largest weight. Scalars, such as the gradient norm, are also computed on this device."""
        sizes = [weight.shape.num_elements() for weight in self.weights]
        return self.devices[sizes.index(max(sizes))]

    def read(self) -> Inputs:
        """Return a copy of the weights, and the current loss scale."""
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
        """Update all trained weights, or skip the update if the loss or a gradient is not finite.

        Args:
            sums: The gradients of the loss sum, one per trained group.
            tokens: The number of target tokens; see `average_and_clip`.
            rate: The learning rate, scalar float32.
            loss_scale: The loss scale of the gradients in float16, else None. The loss scale of the replica is updated.
        """
        with tf.device(self.home):
            clipped = average_and_clip(sums, tokens, self._settings.max_gradient_norm, loss_scale)
            # The number of calls is incremented before any weight changes. If the number is unchanged after an error,
            # the weights are therefore unchanged, too.
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
        """Update the weights and slots of the trained group with this index."""
        decayed = self.groups[i].decayed
        return apply_update(self._settings, self.weights[i], self._slots[i], gradient, scalars, decayed)

    def gather_state(self) -> TrainState:
        """Copy the weights, or their moving averages, into the model, and return the rest of the training state."""
        values = self.by_variable(self._averages or self.weights)
        for weight, value in zip(self._model_weights, values, strict=True):
            if weight is not value:
                weight.assign(value)
        trained = self.by_variable(self.weights) if self._settings.average else []
        slots = [self.by_variable(kind, self.trained) for kind in zip(*self._slots.values(), strict=True)]
        return TrainState(
            [self.updates.numpy(), *(slot.numpy() for kinds in zip(*slots, strict=True) for slot in kinds)],
            [weight.numpy() for weight in trained],
            [self.loss_scale.gather_state()] if self.loss_scale else [],
        )

    def scatter_state(self, state: TrainState) -> None:
        """Copy the weights of the model into the replica, and restore a state from `gather_state`."""
        self._assign(self._averages, self._model_weights)
        self._assign(self.weights, state.trained if self._settings.average else self._model_weights)
        updates, *slots = state.optimizer
        self.updates.assign(updates)
        kinds = [*zip(*self._slots.values(), strict=True)]
        for kind, variables in enumerate(kinds):
            self._assign(variables, slots[kind :: len(kinds)], self.trained)
        if self.loss_scale:
            self.loss_scale.scatter_state(*state.loss_scale)

    def by_variable(self, tensors: Sequence[Any], numbers: Sequence[int] | None = None) -> list[Any]:
        """Split the tensors of groups into one tensor per variable, in the order of model.trainable_variables.

        Args:
            tensors: One tensor per group.
            numbers: The indices of the groups; None for all groups.
        """
        by_index: dict[int, Any] = {}
        for number, tensor in zip(numbers or range(len(self.groups)), tensors, strict=True):
            group = self.groups[number]
            by_index |= zip(group.indices, group.split(tensor), strict=True)
        return [by_index[i] for i in sorted(by_index)]

    def _assign(
        self, variables: Sequence[tf.Variable], values: Sequence[Any], numbers: Sequence[int] | None = None
    ) -> None:
        """Assign values to the variables of groups. This is the inverse of `by_variable`.

        Args:
            variables: One variable per group; may be empty.
            values: One value per model variable, in the order of model.trainable_variables.
            numbers: The indices of the groups; None for all groups.
        """
        groups = [self.groups[number] for number in numbers or range(len(self.groups))]
        by_index = dict(zip(sorted(i for group in groups for i in group.indices), values, strict=True))
        for group, variable in zip(groups, variables, strict=bool(variables)):
            members = [by_index[i] for i in group.indices]
            if members[0] is not variable:
                variable.assign(group.join(members))
