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
    apply_update,
    average_and_clip,
    is_decayed,
    is_overflow,
    make_slots,
    trained_indices,
    update_average,
    update_scalars,
)

Values = list[npt.NDArray[Any]]


class Inputs(NamedTuple):
    """What the gradient function takes of a replica."""

    weights: list[tf.Tensor]
    loss_scale: tf.Tensor | None  # scalar float32, in float16


class Replica:
    """The weights that are trained, their slots, their average and the number of updates, each on its device.

    calls: of `apply` since the replica was made, with those that updated nothing. loss_scale: of float16, else None.
    devices: of each weight.

    place: the device of all weights, or of each; None: where the model's weights are.
    copies: whether to train copies of the model's weights. Otherwise, its weights are on those devices.
    keeps_average: whether this replica keeps the moving average of --average. One does: all replicas are equal.

    With --average, the model's own weights are never trained. They are the averaged ones, which are validated and saved
    as those to chat with, and the trained ones are a part of the state.
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
        self._trained = trained_indices(model, settings)
        self._slots = make_slots(settings.optimizer, [self.weights[i] for i in self._trained])
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

        sums: gradients of the loss sum, one for each weight. tokens: scalar, the target tokens in the sum, NaN if the
        loss is not finite. In float16, both are multiplied by the loss scale, which this updates, too. Returns the
        gradients of the weights that are trained, with their norm.
        """
        with tf.device(self.home):
            trained_sums = [sums[i] for i in self._trained]
            clipped = average_and_clip(trained_sums, tokens, self._settings.max_gradient_norm)
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
        for i, slots, gradient in zip(self._trained, self._slots, clipped.gradients, strict=True):
            weight, decayed = self.weights[i], is_decayed(self._model.trainable_variables[i])
            with tf.device(self.devices[i]):
                with tf.control_dependencies([number]):
                    update = apply_update(self._settings, weight, slots, gradient, scalars, decayed)
                if self._averages:
                    with tf.control_dependencies([update]):
                        decay = self._settings.average
                        update_average(self._averages[i], weight, decay, number, scalars.applied)
        return clipped

    def gather_state(self) -> Values:
        """Copy the weights, averaged with --average, into the model; return the rest in the order of a checkpoint.

        That is the number of updates, with --average the trained weights, the slots, and in float16 the loss scale.
        """
        _assign([variable.value for variable in self._model.trainable_variables], self._averages or self.weights)
        state = [variable.numpy() for variable in self._state()]
        return [*state, self.loss_scale.gather_state()] if self.loss_scale else state

    def scatter_state(self, state: Values) -> None:
        """Set the weights to the model's, and the rest to `state` as `gather_state` returns it."""
        own = [variable.value for variable in self._model.trainable_variables]
        _assign(self._averages, own[: len(self._averages)])
        if not self._settings.average:
            _assign(self.weights, own)
        if self.loss_scale:
            *state, scale = state
            self.loss_scale.scatter_state(scale)
        for variable, value in zip(self._state(), state, strict=True):
            variable.assign(value)

    def _state(self) -> list[tf.Variable]:
        trained = self.weights if self._settings.average else []
        return [self.updates, *trained, *(slot for slots in self._slots for slot in slots)]


class Averages:
    """The weights of the model of a run, and whether they are averages; if not, `split` and `joined` change nothing.

    Averages are never trained. The state that `Replica.gather_state` returns then has the trained weights after its
    first value.
    """

    def __init__(self, weights: Sequence[tf.Variable], averaged: bool = False) -> None:
        self._weights, self._averaged = weights, averaged

    def split(self, state: Values) -> tuple[Values, Values]:
        """Return the trained weights in a state, an empty list without averages, and the rest of the state."""
        count = len(self._weights) if self._averaged else 0
        return state[1 : 1 + count], [state[0], *state[1 + count :]]

    def joined(self, rest: Values, trained: Sequence[Any] = ()) -> Values:
        """Return the state of a run that begins or goes on: the inverse of `split`.

        trained: empty if the run was without averages, and goes on from the model's weights. If it is without averages
        from now on, the trained weights are copied into the model.
        """
        if self._averaged:
            return [rest[0], *(trained or [weight.numpy() for weight in self._weights]), *rest[1:]]
        if trained:
            _assign(self._weights, trained)
        return rest


def _copies(weights: Sequence[tf.Variable], devices: Sequence[str]) -> list[tf.Variable]:
    """Return a copy of each weight on its device."""
    copies = []
    for weight, device in zip(weights, devices, strict=True):
        with tf.device(device):
            copies.append(tf.Variable(weight))
    return copies


def _assign(variables: Sequence[tf.Variable], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        if variable is not value:
            variable.assign(value)
