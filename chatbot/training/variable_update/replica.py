"""A copy of the weights, with what the optimizer keeps of them."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.optimizer import apply_update, averaged, make_slots

Values = list[npt.NDArray[Any]]
Place = str | Sequence[str] | None


class Replica:
    """Weights, slots and the count of updates, each on its device.

    place: the device of all weights, or of each; without it the replica is the model's own weights.
    """

    def __init__(
        self,
        model: Seq2Seq,
        rule: str,
        max_gradient_norm: float,
        place: Place = None,
    ) -> None:
        self._model, self._rule, self._max_gradient_norm = model, rule, max_gradient_norm
        self.weights: list[tf.Variable] = []
        for i, variable in enumerate(model.trainable_variables):
            if place is None:
                self.weights.append(variable.value)
            else:
                with tf.device(place if isinstance(place, str) else place[i]):
                    self.weights.append(tf.Variable(variable.value))
        self._slots = make_slots(rule, self.weights)
        with tf.device(self.home):
            # A variable of ours: concurrent updates lose counts of an optimizer's.
            self.updates = tf.Variable(0, trainable=False, dtype=tf.int64)

    @property
    def home(self) -> str:
        """The device of the largest weight, where scalars are computed."""
        return max(self.weights, key=lambda weight: weight.shape.num_elements()).device

    def apply(self, sums: Sequence[tf.Tensor], tokens: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        """Update every weight once, by the gradient sums over so many tokens. Returns the gradient's norm."""
        with tf.device(self.home):
            gradients, norm = averaged(sums, tokens, self._max_gradient_norm)
            # Counted when all gradients are there, and before any weight changes: who finds the count unchanged after
            # an error knows that no weight was touched.
            with tf.control_dependencies([norm]):
                number = self.updates.assign_add(1, read_value=True)
        with tf.control_dependencies([number]):
            for weight, slots, gradient in zip(self.weights, self._slots, gradients, strict=True):
                with tf.device(weight.device):
                    apply_update(self._rule, weight, slots, gradient, rate, number)
        return norm

    def gather_state(self) -> Values:
        """Put the weights into the model; returns the rest in the order a checkpoint keeps it."""
        for variable, weight in zip(self._model.trainable_variables, self.weights, strict=True):
            if variable.value is not weight:
                variable.assign(weight)
        return [variable.numpy() for variable in self._state()]

    def scatter_state(self, state: Values) -> None:
        """Take the model's weights, and the rest as `gather_state` returned it."""
        for variable, weight in zip(self._model.trainable_variables, self.weights, strict=True):
            if variable.value is not weight:
                weight.assign(variable.value)
        for variable, value in zip(self._state(), state, strict=True):
            variable.assign(value)

    def _state(self) -> list[tf.Variable]:
        return [self.updates, *(slot for slots in self._slots for slot in slots)]
