"""Computations that only read a model's weights, on several devices at once."""

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import keras
import tensorflow as tf

from chatbot.model.seq2seq import Seq2Seq

Item = TypeVar("Item")
Result = TypeVar("Result")


class DeviceCopies:
    """The devices that share a computation. Several have a copy of the weights each while they compute.

    devices: all of the type of the model's own, which is the default.
    """

    def __init__(self, model: Seq2Seq, devices: Sequence[str] = ()) -> None:
        self._devices = list(devices) or [model.device]
        self._copied = model.trainable_variables if self.number > 1 else []

    @property
    def number(self) -> int:
        """The number of devices."""
        return len(self._devices)

    def keep_first(self) -> None:
        """Compute on the first device alone from now on."""
        del self._devices[1:]

    def graph(self, function: Callable[..., Any], signature: Sequence[Any]) -> "SharedGraph":
        """Return a function of the model as a graph for `run`. signature: the specs of its arguments."""

        def with_weights(weights: list[tf.Tensor], *inputs: Any) -> Any:
            with keras.StatelessScope(list(zip(self._copied, weights, strict=True))):
                return function(*inputs)

        weights = [tf.TensorSpec(variable.shape, variable.dtype) for variable in self._copied]
        return SharedGraph(with_weights, [weights, *signature])

    def run(self, compute: Callable[[list[tf.Tensor], Iterator[Item]], Result], items: Sequence[Item]) -> list[Result]:
        """Return what `compute(weights, its items)` returns on each device that has items.

        weights: the first argument of graphs. Of n devices, device i gets every nth item from the ith on. Each computes
        in a thread. After an error in one of them or in the caller's thread, the others get no further item.
        """
        number = min(self.number, len(items))
        stopped = threading.Event()

        def compute_on(index: int) -> Result:
            with tf.device(self._devices[index]):
                weights = [tf.identity(variable.value) for variable in self._copied]
                of_device = itertools.takewhile(lambda _: not stopped.is_set(), items[index::number])
                return compute(weights, of_device)

        if number <= 1:
            return [compute_on(index) for index in range(number)]
        with ThreadPoolExecutor(number, "device") as pool:
            try:
                futures = [pool.submit(compute_on, index) for index in range(number)]
                for ended in wait(futures, return_when=FIRST_EXCEPTION).done:
                    ended.result()  # or its error
            finally:
                stopped.set()
            return [future.result() for future in futures]


class SharedGraph:
    """A function of the weights and other arguments as a graph, which is traced once for all sizes and devices.

    AutoGraph is off. Any thread may call the graph.
    """

    def __init__(self, function: Callable[..., Any], signature: Sequence[Any]) -> None:
        self._function = tf.function(function, input_signature=signature, autograph=False)

    def __call__(self, weights: Sequence[tf.Tensor], *inputs: Any) -> Any:
        """Run the graph on the device of the caller. The first call traces it."""
        return self.concrete([*weights], *inputs)

    @functools.cached_property
    def concrete(self) -> Any:
        """The traced function."""
        # TensorFlow would trace a function anew for each device on which it is called.
        with tf.device(None):
            return self._function.get_concrete_function()

    @property
    def traces(self) -> int:
        """The number of times that the function was traced."""
        return int(self._function.experimental_get_tracing_count())
