"""What all variable updates have in common: the interface of a training step, its traced graphs, and its results."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from chatbot.corpus.batches import GlobalBatch
from chatbot.model.sequences import specs_of
from chatbot.training.gradients import Sums, TowerSums
from chatbot.training.memory import MemoryLimits
from chatbot.training.replica import TrainState
from chatbot.training.share import Buffer, Preparation, Prepared, Share


class StepResult(NamedTuple):
    """The result of a step, on the host."""

    loss_sums: Any  # [towers of all machines] float32, nats
    weight_sums: Any  # [towers of all machines] float32, real target tokens
    examples: int  # pairs in the global batch
    gradient_norm: float  # of the averaged gradient before clipping
    finite: bool  # false if the update was skipped, since its loss or gradient was not finite
    overflow: bool = False  # in float16: a smaller loss scale may prevent what was not finite


def packed_result(report: tf.Tensor, norm: tf.Tensor, finite: tf.Tensor, overflow: tf.Tensor) -> tf.Tensor:
    """Return a result as one vector, which the host reads in one copy. report: of `TowerSums`."""
    return tf.concat(
        [tf.reshape(report, [-1]), tf.stack([norm, *(tf.cast(x, tf.float32) for x in (finite, overflow))])], 0
    )


def unpacked_results(results: Sequence[tf.Tensor]) -> list[StepResult]:
    """Return the results that `packed_result` has packed, after the devices have computed them."""
    unpacked = []
    for *report, norm, finite, overflow in np.asarray(tf.stack(results)) if results else ():
        losses, tokens, pairs = np.reshape(np.array(report, np.float32), [3, -1])
        unpacked.append(StepResult(losses, tokens, int(pairs.sum()), float(norm), bool(finite), bool(overflow)))
    return unpacked


class Graph:
    """Calls a function as a graph, traced at the first call for batches of all sizes.

    traced: the traced function, None before. is_tracing: whether a thread traces now.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = tf.function(function, autograph=False)
        self.traced: Any = None
        self.is_tracing = False

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph. Only the sizes of the batch may differ between calls."""
        return self.concrete(*inputs)(*inputs)

    def concrete(self, *inputs: Any) -> Any:
        """Return the traced function, for these inputs."""
        if self.traced is None:
            self.is_tracing = True
            try:
                self.traced = self._function.get_concrete_function(*map(_spec, inputs))
            finally:
                self.is_tracing = False
        return self.traced

    @property
    def traces(self) -> int:
        """The number of times that the function was traced."""
        return int(self._function.experimental_get_tracing_count())


def _spec(value: Any) -> Any:
    """Return a structure's specs, with sizes of None where the batch sets them: in a share, and in `used` and rows."""
    if isinstance(value, Share | Buffer):
        return specs_of(value)
    if isinstance(value, Sums):
        return Sums(*map(_spec, value))._replace(rows=tf.TensorSpec([None, value.rows.shape[1]], value.rows.dtype))
    if isinstance(value, TowerSums):
        return TowerSums(*map(_spec, value))._replace(used=[specs_of(used) for used in value.used])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_spec, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_spec, value))
    if value is None:
        return None
    return tf.TensorSpec(value.shape, value.dtype)


class VariableUpdate(abc.ABC):
    """A training step and its state, on devices of one or several machines.

    tower_names: in the order of the losses. num_shares: of a global batch, in this process. accumulate: the fewest
    pieces of each share. has_exchange: whether a step waits for other devices or machines, which might be for ever if
    one of them has failed.
    """

    preparation: Preparation
    has_exchange = True

    def __init__(self, tower_names: list[str], num_shares: int, accumulate: int = 1) -> None:
        self.tower_names = tower_names
        self.num_shares = num_shares
        self.memory = MemoryLimits(accumulate)
        self._finished: list[tf.Tensor] = []

    @property
    def is_tracing(self) -> bool:
        """Whether a graph of the step is being traced. Any thread may ask."""
        return any(graph.is_tracing for graph in vars(self).values() if isinstance(graph, Graph))

    def prepare(self, batch: GlobalBatch, number: int) -> Prepared:
        """Prepare the global batch of step `number`, counted from 0, on the host. Any thread may call this."""
        return self.preparation(batch, number, self.memory.pieces(batch))

    def begin_copies(self, prepared: Prepared) -> None:
        """Begin to copy a batch to the devices. A step does so itself if nobody has done so before."""
        self.preparation.begin_copies(prepared)

    @abc.abstractmethod
    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Train on a global batch. rate: the learning rate."""

    def take_results(self) -> list[tf.Tensor]:
        """Return the packed results of the steps since the last call, at least one; devices may still compute them."""
        finished = self._finished
        self._finished = []
        return finished

    def finished_steps(self) -> list[StepResult]:
        """Return the results of the steps since the last call, at least one, when the devices have computed them."""
        return unpacked_results(self.take_results())

    @abc.abstractmethod
    def gather_state(self) -> TrainState:
        """Copy the weights into the model; return the rest of a checkpoint."""

    @abc.abstractmethod
    def scatter_state(self, state: TrainState) -> None:
        """Continue from the model's weights and a state as `gather_state` returns it."""
