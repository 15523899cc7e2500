"""Runs computations that only read a model's weights on several devices in parallel."""

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
    """Copies of a model on several devices, which divide the inputs of a computation among them.

    Args:
        model: The model.
        devices: The names of the devices, which must have the same type as the model's device. The default is the
            model's device alone.
    """

    def __init__(self, model: Seq2Seq, devices: Sequence[str] = ()) -> None:
        self._devices = list(devices) or [model.device]
        self._copied = model.trainable_variables if len(self._devices) > 1 else []

    def keep_first(self) -> None:
        """Use only the first device from now on."""
        del self._devices[1:]

    def graph(self, function: Callable[..., Any], signature: Sequence[Any]) -> "SharedGraph":
        """Convert a function to a graph that `run` can call on every device.

        Args:
            function: A function that uses the model.
            signature: The tensor specs of its arguments.
        """

        def with_weights(weights: list[tf.Tensor], *inputs: Any) -> Any:
            with keras.StatelessScope(list(zip(self._copied, weights, strict=True))):
                return function(*inputs)

        weights = [tf.TensorSpec(variable.shape, variable.dtype) for variable in self._copied]
        return SharedGraph(with_weights, [weights, *signature])

    def run(self, compute: Callable[[list[tf.Tensor], Iterator[Item]], Result], items: Sequence[Item]) -> list[Result]:
        """Run a computation on all devices, with one thread per device.

        After an error, the remaining items are not processed.

        Args:
            compute: A function that is called once per device. Its arguments are the weights, to pass to the graphs,
                and the items of the device.
            items: The items, which are distributed to the devices in round-robin order.

        Returns:
            The result of each device that has items.
        """
        number = min(len(self._devices), len(items))
        stopped = threading.Event()

        def compute_on(index: int) -> Result:
            with tf.device(self._devices[index]):
                weights = [tf.identity(variable.value) for variable in self._copied]
                own_items = itertools.takewhile(lambda _: not stopped.is_set(), items[index::number])
                return compute(weights, own_items)

        if number <= 1:
            return [compute_on(index) for index in range(number)]
        with ThreadPoolExecutor(number, "device") as pool:
            try:
                futures = [pool.submit(compute_on, index) for index in range(number)]
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()  # raises the thread's error
            finally:
                stopped.set()
            return [future.result() for future in futures]


class SharedGraph:
    """A thread-safe graph that is traced once for all devices and tensor sizes, without AutoGraph."""

    def __init__(self, function: Callable[..., Any], signature: Sequence[Any]) -> None:
        self._function = tf.function(function, input_signature=signature, autograph=False)

    def __call__(self, weights: Sequence[tf.Tensor], *inputs: Any) -> Any:
        """Run the graph on the caller's device. The first call traces it."""
        return self.concrete([*weights], *inputs)

    @functools.cached_property
    def concrete(self) -> Any:
        """The traced function."""
        # Trace outside any device scope, or TensorFlow would trace the function again for each device.
        with tf.device(None):
            return self._function.get_concrete_function()

    @property
    def traces(self) -> int:
        """The number of times the function was traced."""
        return int(self._function.experimental_get_tracing_count())
