"""The common interface of synchronous and asynchronous training steps."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from chatbot.corpus.batches import GlobalBatch
from chatbot.model.sequences import unsized_specs
from chatbot.training.gradients import Sums, TowerSums
from chatbot.training.memory import MemoryLimits
from chatbot.training.replica import TrainState
from chatbot.training.share import Buffer, Preparation, Prepared, Share


class StepResult(NamedTuple):
    """The result of a training step, stored on the host."""

    loss_sums: Any  # [towers of all machines] float32, nats
    weight_sums: Any  # [towers of all machines] float32, numbers of target tokens
    examples: int  # number of pairs in the global batch
    gradient_norm: float  # norm of the mean gradient before clipping
    finite: bool  # false if the update was skipped because the loss or gradient was not finite
    overflow: bool = False  # whether the update was skipped because the loss scale was too large for float16


def pack_result(report: tf.Tensor, norm: tf.Tensor, finite: tf.Tensor, overflow: tf.Tensor) -> tf.Tensor:
    """Pack the result of a step into one vector, which is copied to the host in a single transfer.

    Args:
        report: The losses, target tokens and pairs of all towers, as in `TowerSums`.
        norm: The gradient norm before clipping, scalar float32.
        finite: Whether the loss and the gradients were finite, scalar bool.
        overflow: Whether the gradients overflowed in float16, scalar bool.
    """
    return tf.concat(
        [tf.reshape(report, [-1]), tf.stack([norm, *(tf.cast(x, tf.float32) for x in (finite, overflow))])], 0
    )


def unpack_results(results: Sequence[tf.Tensor]) -> list[StepResult]:
    """Unpack vectors from `pack_result` on the host, after waiting for the devices to compute them."""
    unpacked = []
    for *report, norm, finite, overflow in np.asarray(tf.stack(results)) if results else ():
        losses, tokens, pairs = np.reshape(np.array(report, np.float32), [3, -1])
        unpacked.append(StepResult(losses, tokens, int(pairs.sum()), float(norm), bool(finite), bool(overflow)))
    return unpacked


class Graph:
    """Runs a function as a graph that is traced once, in the first call, and then accepts batches of any size.

    Attributes:
        traced: The concrete function; None before the first call.
        is_tracing: Whether the function is currently being traced.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = tf.function(function, autograph=False)
        self.traced: Any = None
        self.is_tracing = False

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph. Only the sizes of the batch may differ between calls."""
        return self.concrete(*inputs)(*inputs)

    def concrete(self, *inputs: Any) -> Any:
        """Return the concrete function, which is traced with the inputs of the first call."""
        if self.traced is None:
            self.is_tracing = True
            try:
                self.traced = self._function.get_concrete_function(*map(_spec, inputs))
            finally:
                self.is_tracing = False
        return self.traced

    @property
    def traces(self) -> int:
        """The number of times the function has been traced."""
        return int(self._function.experimental_get_tracing_count())


def _spec(value: Any) -> Any:
    """Return the tensor specs of a structure. Dimensions that depend on the batch are None."""
    if isinstance(value, Share | Buffer):
        return unsized_specs(value)
    if isinstance(value, Sums):
        return Sums(*map(_spec, value))._replace(rows=tf.TensorSpec([None, value.rows.shape[1]], value.rows.dtype))
    if isinstance(value, TowerSums):
        return TowerSums(*map(_spec, value))._replace(lookup_ids=[unsized_specs(ids) for ids in value.lookup_ids])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_spec, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_spec, value))
    if value is None:
        return None
    return tf.TensorSpec(value.shape, value.dtype)


class VariableUpdate(abc.ABC):
    """A training step and the training state, on the devices of one or several machines.

    Args:
        tower_names: The names of the towers, in the order of the losses.
        num_shares: The number of parts of a global batch that this process computes.
        accumulate: The minimum number of micro-batches.

    Attributes:
        has_exchange: Whether a step waits for other devices or machines, so it can hang if one of them fails.
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
        """Whether any graph of the step is currently being traced. Thread-safe."""
        return any(graph.is_tracing for graph in vars(self).values() if isinstance(graph, Graph))

    def prepare(self, batch: GlobalBatch, number: int) -> Prepared:
        """Prepare the global batch of step `number`, counted from 0, on the host. Thread-safe."""
        return self.preparation(batch, number, self.memory.pieces(batch))

    def begin_copies(self, prepared: Prepared) -> None:
        """Start copying a batch to the devices ahead of time. Without this call, the step copies the batch."""
        self.preparation.begin_copies(prepared)

    @abc.abstractmethod
    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Train on a global batch with the given learning rate."""

    def take_results(self) -> list[tf.Tensor]:
        """Return the results of the steps since the last call as vectors. Devices may still be computing them."""
        finished = self._finished
        self._finished = []
        return finished

    def finished_steps(self) -> list[StepResult]:
        """Wait for the steps since the last call to finish, and return their results."""
        return unpack_results(self.take_results())

    @abc.abstractmethod
    def gather_state(self) -> TrainState:
        """Copy the weights into the model, and return the rest of the training state."""

    @abc.abstractmethod
    def scatter_state(self, state: TrainState) -> None:
        """Restore the weights from the model, and the rest of the training state from a result of `gather_state`."""
