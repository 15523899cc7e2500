"""What stand-in GPUs do with memory and in collectives, seen from processes of their own that compute on them."""

import atexit
import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.ops import nccl_ops

from chatbot.training.allreduce import exchange_by

Arrays = list[npt.NDArray[Any]]
TYPES = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
SIZES = (0, 1, 7, 1000, 100_003)


def address(tensor: tf.Tensor) -> int:
    """Return where a tensor's memory is, without waiting for its values."""
    (words,) = execute.execute(b"StandinAddress", 1, [tensor], (), context.context())
    return int(words.numpy().view(np.int64)[0])


def look(place: int) -> float:
    """Return the first float of a memory, as the host sees it now."""
    return float(ctypes.c_float.from_address(place).value)


def memory_over_time() -> dict[str, list[float]]:
    """Look at the memory of sums before and after the stream has computed them, and before and after it is freed."""
    early, late, unfreed, freed = [], [], [], []
    with tf.device("/GPU:0"):
        ones = tf.ones([1000])
        for _ in range(30):
            total = ones + ones
            place = address(total)
            early.append(look(place))
            tf.test.experimental.sync_devices()
            late.append(look(place))
            kept = [ones + i for i in range(5)]  # what the stream computes before it frees the memory
            del total
            unfreed.append(look(place))
            tf.test.experimental.sync_devices()
            freed.append(look(place))
            del kept
    return {"early": early, "late": late, "unfreed": unfreed, "freed": freed}


def random_arrays(count: int, size: int, dtype: tf.DType = tf.float32) -> Arrays:
    """Return arrays of whose sums the order of the terms shows, except of integers."""
    rng = np.random.default_rng(size)
    return [(9 * rng.standard_normal(size)).astype(dtype.as_numpy_dtype) for _ in range(count)]


def in_order(arrays: Iterable[Any]) -> Any:
    """Return the sum of arrays, added one after another."""
    total, *others = arrays
    for other in others:
        total = total + other
    return total


def equal_bits(actual: Iterable[Any], expected: Iterable[Any]) -> bool:
    """Return whether arrays are equal, and no NaN."""
    return all(
        np.asarray(a).dtype == np.asarray(b).dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(actual, expected, strict=True)
    )


def on_gpus(make: Callable[[int, tf.Tensor], Any], tensors: Iterable[tf.Tensor]) -> list[Any]:
    """Return what a function makes of each tensor, on the GPU of its index."""
    made = []
    for i, tensor in enumerate(tensors):
        with tf.device(f"/GPU:{i}"):
            made.append(make(i, tensor))
    return made


def all_sum(gpus: int, dtype: tf.DType = tf.float32) -> Any:
    """Return a graph that sums, over GPUs, a tensor of each that a kernel has computed just before."""

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return nccl_ops.all_sum(on_gpus(lambda _, tensor: tensor + tf.zeros_like(tensor), tensors))

    return tf.function(call, input_signature=[tf.TensorSpec([None], dtype)] * gpus, autograph=False)


def sums() -> dict[str, bool]:
    """Return whether sums are equal to the bit on all GPUs: alone, many at once, and those of the strategies."""
    found = {}
    for gpus, dtype in itertools.product((2, 4), TYPES):
        graph = all_sum(gpus, dtype)
        for size in SIZES:
            arrays = random_arrays(gpus, size, dtype)
            found[f"{size} {dtype.name} over {gpus}"] = equal_bits(graph(*arrays), [in_order(arrays)] * gpus)
    graphs = [all_sum(gpus) for gpus in (4, 4, 2)]

    def in_a_thread(i: int) -> bool:
        row = random_arrays(4, 1000 + i)[: len(graphs[i % 3].input_signature)]
        return equal_bits(graphs[i % 3](*row), [in_order(row)] * len(row))

    with ThreadPoolExecutor(4) as threads:
        found["graphs of four threads"] = all(threads.map(in_a_thread, range(60)))
    rows = [[array, array[:3]] for array in random_arrays(4, 1000)]
    expected = [in_order(column) for column in zip(*rows, strict=True)]
    for all_reduce in (tf.distribute.NcclAllReduce(), None):
        strategy = tf.distribute.MirroredStrategy([f"/GPU:{i}" for i in range(4)], cross_device_ops=all_reduce)
        result = tf.function(exchange_by(strategy), autograph=False)([[*map(tf.constant, row)] for row in rows])
        found[f"exchange by {all_reduce}"] = all(equal_bits(row, expected) for row in result)
    return found


def two_sums(first: str, second: str) -> bool:
    """Run two sums over two GPUs, one after another on each. first, second: the order of "ab" on each GPU."""

    @tf.function(autograph=False)
    def graph() -> list[Any]:
        def one_after_another(i: int, tensor: tf.Tensor) -> tf.Tensor:
            for name in (first, second)[i]:
                # The sum takes the result of the one before, so that it is asked for when that one has ended.
                summed = tf.raw_ops.NcclAllReduce(
                    input=tensor, reduction="sum", num_devices=2, shared_name=f"{first}{second}{name}"
                )
                tensor = tensor + 0.0 * summed
            return tensor

        return on_gpus(one_after_another, [tf.ones([3])] * 2)

    return all((tensor.numpy() == 1).all() for tensor in graph())


def hangs() -> tuple[bool, bool]:
    """Return whether two sums have a result, and whether two that wait for each other have none after three seconds."""
    atexit.register(os._exit, 0)  # nothing ends them
    thread = threading.Thread(target=two_sums, args=("ab", "ba"), daemon=True)
    in_order = two_sums("ab", "ab")
    thread.start()
    thread.join(3)
    return in_order, thread.is_alive()
