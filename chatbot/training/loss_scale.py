"""The loss scale of float16: a factor of the loss that keeps the gradients within the range of float16.

It adapts as in mixed-precision training elsewhere: gradients that overflow halve it and their update is skipped; many
finite steps in a row double it. It starts at 1, since the loss is a sum: Micikevicius et al. (2018) scale the small
gradients of a mean up. All scales are powers of two, so that they change no bit of a gradient within the range.
"""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

SMALLEST, LARGEST = 2.0**-24, 2.0**24
# The scale is doubled after this number of finite steps in a row.
DOUBLED_AFTER = 2000


class LossScale:
    """The loss scale and the finite steps since it last changed, in one variable on the device of the caller."""

    def __init__(self) -> None:
        self._variable = tf.Variable([1.0, 0.0], trainable=False)

    def read(self) -> tf.Tensor:
        """Return the scale, scalar float32."""
        return self._variable[0]

    def update(self, used: tf.Tensor, finite: tf.Tensor, overflow: tf.Tensor) -> tf.Operation:
        """Halve the scale after an overflow, or double it after DOUBLED_AFTER finite steps in a row.

        used: the scale that the gradients were computed with. Asynchronous steps that overflow with the same scale
        halve it once. finite: scalar bool, whether the update is applied. overflow: from `is_overflow`.
        """
        scale, steps = tf.unstack(self._variable)
        steps = tf.where(finite, steps + 1, 0.0)
        doubled = steps >= DOUBLED_AFTER
        steps = tf.where(doubled, 0.0, steps)
        larger = tf.where(doubled, tf.minimum(2 * scale, LARGEST), scale)
        scale = tf.where(overflow, tf.minimum(used / 2, scale), larger)
        return self._variable.assign([scale, steps], read_value=False)

    def gather_state(self) -> npt.NDArray[np.float32]:
        """Return the state for a checkpoint, [2]: the logarithm of the scale to base 2, and the finite steps.

        Zeros are the state of a new run, as for the rest of the optimizer.
        """
        scale, steps = self._variable.numpy()
        return np.array([np.log2(scale), steps], np.float32)

    def scatter_state(self, state: npt.NDArray[np.float32]) -> None:
        """Continue from a state as `gather_state` returns it."""
        exponent, steps = state
        self._variable.assign([2.0**exponent, steps])


def is_overflow(used: tf.Tensor, finite: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Return whether an update was skipped because the loss scale was too large, scalar bool.

    used: the scale that the gradients were computed with. finite: whether the update is applied. tokens: NaN if the
    loss is not finite; no scale helps then, nor if it is the smallest one already.
    """
    return ~finite & tf.math.is_finite(tokens) & (used > SMALLEST)
