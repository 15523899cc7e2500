"""The averaged weights of a run, beside those that it trains (--average, --average-checkpoints)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.training.variable_update.replica import Values


class Averages:
    """The weights of the model of a run that averages them; without averages, its methods change nothing.

    weights: the model's. With averages they are never trained, and the state of `VariableUpdate.gather_state` has the
    trained ones after its first value. recent: the trained weights at the last validations, with --average-checkpoints.
    """

    def __init__(self, weights: Sequence[tf.Variable], settings: LearningSettings) -> None:
        self.weights = list(weights)
        self.recent: list[Values] = []
        self._settings = settings

    @property
    def most_recent(self) -> int:
        """The largest length of `recent`."""
        number = self._settings.average_checkpoints
        return number if number > 1 else 0

    def split(self, state: Values) -> tuple[Values, Values]:
        """Return the trained weights in a state, an empty list without averages, and the rest of the state."""
        count = len(self.weights) if self._settings.averages else 0
        return state[1 : 1 + count], [state[0], *state[1 + count :]]

    def joined(self, rest: Values, trained: Sequence[Any] = (), recent: Sequence[Values] = ()) -> Values:
        """Return the state of a run that begins or goes on: the inverse of `split`.

        trained: empty if the run was without averages, and goes on from the model's weights. If it is without averages
        from now on, the trained weights are copied into the model. recent: as the attribute, from the last checkpoint.
        """
        self.recent = [*recent][-self.most_recent :] if self.most_recent else []
        if self._settings.averages:
            return [rest[0], *(trained or [weight.numpy() for weight in self.weights]), *rest[1:]]
        if trained:
            self._assign(trained)
        return rest

    def update(self, state: Values, validated: bool) -> None:
        """Set the model's weights to the mean of the trained ones at the last validations, if there was one.

        This is the average of Vaswani et al. (2017). validated: whether a validation is due at this step.
        """
        if self.most_recent and validated:
            self.recent = [*self.recent, self.split(state)[0]][-self.most_recent :]
        if self.most_recent and self.recent:
            self._assign([np.mean(values, axis=0, dtype=np.float64) for values in zip(*self.recent, strict=True)])

    def _assign(self, values: Sequence[Any]) -> None:
        for weight, value in zip(self.weights, values, strict=True):
            weight.assign(value)
