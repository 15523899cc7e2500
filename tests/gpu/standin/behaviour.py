"""What stand-in GPUs do with memory and in collectives, seen from processes of their own that compute on them."""

import atexit
import ctypes
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute


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


def on_gpus(make: Callable[[int, tf.Tensor], Any], tensors: Iterable[tf.Tensor]) -> list[Any]:
    """Return what a function makes of each tensor, on the GPU of its index."""
    made = []
    for i, tensor in enumerate(tensors):
        with tf.device(f"/GPU:{i}"):
            made.append(make(i, tensor))
    return made


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
