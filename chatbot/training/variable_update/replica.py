"""A copy of the weights with its optimizer slots."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.optimizer import apply_update, average_and_clip, beta_powers, is_decayed, make_slots

Values = list[npt.NDArray[Any]]
Place = str | Sequence[str] | None


class Replica:
    """Weights, slots and the number of updates, each on its device.

    place: the device of all weights, or of each; None uses the model's own weights, without a copy.
    """

    def __init__(
        self,
        model: Seq2Seq,
        settings: LearningSettings,
        place: Place = None,
    ) -> None:
        self._model, self._settings = model, settings
        self.weights: list[tf.Variable] = []
        for i, variable in enumerate(model.trainable_variables):
            if place is None:
                self.weights.append(variable.value)
            else:
                with tf.device(place if isinstance(place, str) else place[i]):
                    self.weights.append(tf.Variable(variable.value))
        self._slots = make_slots(settings.optimizer, self.weights)
        with tf.device(self.home):
            self.updates = tf.Variable(0, trainable=False, dtype=tf.int64)

    @property
    def home(self) -> str:
        """The device of the largest weight, on which scalars are computed."""
        return max(self.weights, key=lambda weight: weight.shape.num_elements()).device

    def apply(self, sums: Sequence[tf.Tensor], tokens: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        """Update every weight once and return the gradient norm before clipping.

        sums: gradients of the loss sum, one for each weight. tokens: scalar, the target tokens in the sum.
        """
        with tf.device(self.home):
            gradients, norm = average_and_clip(sums, tokens, self._settings.max_gradient_norm)
            # Counted after all gradients are computed and before any weight changes: if the count is unchanged after
            # an error, so are the weights.
            with tf.control_dependencies([norm]):
                number = self.updates.assign_add(1, read_value=True)
            powers = beta_powers(self._settings, number)
        with tf.control_dependencies([number]):
            variables = self._model.trainable_variables
            for variable, weight, slots, gradient in zip(variables, self.weights, self._slots, gradients, strict=True):
                with tf.device(weight.device):
                    apply_update(self._settings, weight, slots, gradient, rate, powers, is_decayed(variable))
        return norm

    def gather_state(self) -> Values:
        """Copy the weights into the model; return the rest in the order of a checkpoint."""
        for variable, weight in zip(self._model.trainable_variables, self.weights, strict=True):
            if variable.value is not weight:
                variable.assign(weight)
        return [variable.numpy() for variable in self._state()]

    def scatter_state(self, state: Values) -> None:
        """Set the weights to the model's, and the rest to `state` as `gather_state` returns it."""
        for variable, weight in zip(self._model.trainable_variables, self.weights, strict=True):
            if variable.value is not weight:
                weight.assign(variable.value)
        for variable, value in zip(self._state(), state, strict=True):
            variable.assign(value)

    def _state(self) -> list[tf.Variable]:
        return [self.updates, *(slot for slots in self._slots for slot in slots)]
