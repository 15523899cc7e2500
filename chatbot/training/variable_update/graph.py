"""A function of a step as a TensorFlow graph that is traced once."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from chatbot.model.sequences import specs_of
from chatbot.training.buffer import Buffer
from chatbot.training.gradients import Sums
from chatbot.training.share import Share


class Graph:
    """Calls a function as a graph. The first call traces it, for batches of all sizes.

    AutoGraph is off: no branch depends on a tensor, and tracing is faster.

    is_tracing: whether a thread traces the function now.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = tf.function(function, autograph=False)
        self._concrete: Any = None
        self.is_tracing = False

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph. Only the sizes of the batch may differ between calls."""
        return self.concrete(*inputs)(*inputs)

    def concrete(self, *inputs: Any) -> Any:
        """Return the traced function, for these inputs."""
        if self._concrete is None:
            self.is_tracing = True
            try:
                self._concrete = self._function.get_concrete_function(*map(_spec, inputs))
            finally:
                self.is_tracing = False
        return self._concrete

    @property
    def traced(self) -> Any:
        """The traced function, None before the first call."""
        return self._concrete

    @property
    def traces(self) -> int:
        """The number of times that the function was traced."""
        return int(self._function.experimental_get_tracing_count())


def _spec(value: Any) -> Any:
    """Return a structure's specs, with sizes of None where the batch sets them: in a share, `used` and Sums.rows."""
    if isinstance(value, Share | Buffer):
        return specs_of(value)
    if isinstance(value, Sums):
        return Sums(*map(_spec, value))._replace(rows=tf.TensorSpec([None, value.rows.shape[1]], value.rows.dtype))
    if isinstance(value, list | tuple):
        return type(value)(map(_spec, value))
    if value.dtype == tf.int64 and value.shape.rank == 1:  # ids
        return specs_of(value)
    return tf.TensorSpec(value.shape, value.dtype)
