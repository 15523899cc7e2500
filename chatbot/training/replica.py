"""The weights that are trained, with their optimizer slots and average."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.optimizer import (
    Clipped,
    LossScale,
    Scalars,
    apply_update,
    average_and_clip,
    is_decayed,
    is_overflow,
    make_slots,
    trained_indices,
    update_average,
    update_scalars,
)

Values = Sequence[npt.NDArray[Any]]


class TrainState(NamedTuple):
    """What a checkpoint has beside the weights of the model."""

    optimizer: Values  # the number of updates, the slots, and with --staged-variables the pending gradients
    trained: Values = ()  # with --average the weights that are trained, since those of the model are averages
    loss_scale: Values = ()  # in float16, of `LossScale`


class Inputs(NamedTuple):
    """What the gradient function takes of a replica."""

    weights: list[tf.Tensor]
    loss_scale: tf.Tensor | None  # scalar float32, in float16


class Replica:
    """The weights that are trained, their slots, their average and the number of updates, each on its device.

    place: the device of all weights, or of each; None: where the model's weights are. copies: train copies of the
    model's weights. keeps_average: keep the moving average of --average, as one of several equal replicas does; it is
    then in the model's weights, which are validated and saved, and never trained.
    calls: of `apply`, with those that updated nothing.
    """

    def __init__(
        self,
        model: Seq2Seq,
        settings: LearningSettings,
        place: str | Sequence[str] | None = None,
        copies: bool = False,
        keeps_average: bool = True,
    ) -> None:
        self._model, self._settings = model, settings
        own = [variable.value for variable in model.trainable_variables]
        if place is None:
            place = [weight.device for weight in own]
        self.devices = [place] * len(own) if isinstance(place, str) else list(place)
        self.weights = _copies(own, self.devices) if copies or settings.average else own
        self.trained = trained_indices(model, settings)
        slots = make_slots(settings.optimizer, [self.weights[i] for i in self.trained])
        self._slots = dict(zip(self.trained, slots, strict=True))
        self._averages: list[tf.Variable] = []
        if settings.average and keeps_average:
            self._averages = _copies(own, self.devices) if copies else own
        with tf.device(self.home):
            self.updates = tf.Variable(0, trainable=False, dtype=tf.int64)
            self.calls = tf.Variable(0, trainable=False, dtype=tf.int64)
            self.loss_scale = LossScale() if model.precision == "float16" else None

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

    def apply(self, sums: Sequence[tf.Tensor], tokens: tf.Tensor, rate: tf.Tensor) -> Clipped:
        """Update every weight that is trained once, or nothing if the loss or a gradient is not finite.

        sums: gradients of the loss sum, one for each weight. tokens: as for `average_and_clip`. In float16, this
        updates the loss scale, too.
        """
        with tf.device(self.home):
            clipped = self.clip(sums, tokens)
            # Counted after all gradients are computed and before any weight changes: if the count is unchanged after
            # an error, so are the weights.
            with tf.control_dependencies([clipped.norm]):
                called = self.calls.assign_add(1, read_value=False)
            with tf.control_dependencies([called]):
                number = self.updates.assign_add(tf.cast(clipped.finite, tf.int64), read_value=True)
            scalars = update_scalars(rate, number, clipped.finite)
            if self.loss_scale is not None:
                with tf.control_dependencies([number]):
                    used = self.loss_scale.read()
                    clipped = clipped._replace(overflow=is_overflow(used, clipped.finite, tokens))
                    self.loss_scale.update(used, clipped.finite, clipped.overflow)
        for i, gradient in zip(self.trained, clipped.gradients, strict=True):
            with tf.device(self.devices[i]):
                with tf.control_dependencies([number]):
                    update = self.update_weight(i, gradient, scalars)
                if self._averages:
                    with tf.control_dependencies([update]):
                        decay = self._settings.average
                        update_average(self._averages[i], self.weights[i], decay, number, scalars.applied)
        return clipped

    def clip(self, sums: Sequence[tf.Tensor], tokens: tf.Tensor) -> Clipped:
        """Return the clipped gradients of the weights that are trained, from the arguments of `apply`."""
        return average_and_clip([sums[i] for i in self.trained], tokens, self._settings.max_gradient_norm)

    def update_weight(self, i: int, gradient: tf.Tensor, scalars: Scalars) -> tf.Operation:
        """Update weight i, which is trained, and its slots."""
        decayed = is_decayed(self._model.trainable_variables[i])
        return apply_update(self._settings, self.weights[i], self._slots[i], gradient, scalars, decayed)

    def gather_state(self) -> TrainState:
        """Copy the weights, averaged with --average, into the model; return the rest of a checkpoint."""
        _assign([variable.value for variable in self._model.trainable_variables], self._averages or self.weights)
        trained = self.weights if self._settings.average else []
        return TrainState(
            [variable.numpy() for variable in self._optimizer()],
            [weight.numpy() for weight in trained],
            [self.loss_scale.gather_state()] if self.loss_scale else [],
        )

    def scatter_state(self, state: TrainState) -> None:
        """Set the weights to the model's, and the rest to `state` as `gather_state` returns it."""
        own = [variable.value for variable in self._model.trainable_variables]
        _assign(self._averages, own[: len(self._averages)])
        _assign(self.weights, state.trained if self._settings.average else own)
        _assign(self._optimizer(), state.optimizer)
        if self.loss_scale:
            self.loss_scale.scatter_state(*state.loss_scale)

    def _optimizer(self) -> list[tf.Variable]:
        return [self.updates, *(slot for slots in self._slots.values() for slot in slots)]


def _copies(weights: Sequence[tf.Variable], devices: Sequence[str]) -> list[tf.Variable]:
    copies = []
    for weight, device in zip(weights, devices, strict=True):
        with tf.device(device):
            copies.append(tf.Variable(weight))
    return copies


def _assign(variables: Sequence[tf.Variable], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        if variable is not value:
            variable.assign(value)
