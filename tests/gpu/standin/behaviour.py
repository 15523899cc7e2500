"""What stand-in GPUs do, seen from a process that computes on them: each function is called in one of its own."""

import ctypes
import os
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute

from tests.gpu import standin

SIZE = 1000


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
        ones = tf.ones([SIZE])
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


def copies() -> dict[str, standin.Counts]:
    """Count what a product from host to host needs, a loop whose variable is an int32, and a deterministic scatter."""
    numbers = np.ones([SIZE, SIZE], np.float32)

    def product() -> None:
        with tf.device("/GPU:0"):
            on_device = tf.constant(numbers)
        (on_device @ on_device).numpy()

    @tf.function(autograph=False)
    def loop(dtype: tf.DType, end: int) -> tf.Tensor:
        start = tf.zeros([], dtype), tf.zeros([])
        return tf.while_loop(lambda i, _: i < end, lambda i, x: (i + 1, x + tf.cast(i, tf.float32)), start)[1]

    found = {}
    for name, call in {
        "product": product,
        "float loop": lambda: loop(tf.float32, 10).numpy(),
        "int loop": lambda: loop(tf.int32, 10).numpy(),
    }.items():
        with tf.device("/GPU:0"):
            call()  # traced
            before = standin.counts()
            call()
            found[name] = standin.counts().since(before)
    tf.config.experimental.enable_op_determinism()
    with tf.device("/GPU:0"):
        arguments = tf.constant(numbers), tf.constant([[0], [5]], tf.int64), tf.constant(numbers[:2])
        before = standin.counts()
        tf.tensor_scatter_nd_add(*arguments)
        tf.test.experimental.sync_devices()
        found["scatter"] = standin.counts().since(before)
    return found


def shortage() -> dict[str, Any]:
    """Allocate more than there is; return the error, and the memory in use before and after."""
    before = tf.config.experimental.get_memory_info("GPU:0")
    kept: list[tf.Tensor] = []
    message = ""
    with tf.device("/GPU:0"):
        try:
            while len(kept) < 100:
                kept.append(tf.ones([1 << 20]) + 1)
        except tf.errors.ResourceExhaustedError as error:
            message = error.message
    kept.clear()
    tf.test.experimental.sync_devices()
    return {"message": message, "before": before, "after": tf.config.experimental.get_memory_info("GPU:0")}


def many_products() -> list[tuple[float, ...]]:
    """Compute on all GPUs, five times; return their results."""
    results = []
    for _ in range(5):
        values = []
        for i in range(len(tf.config.list_logical_devices("GPU"))):
            with tf.device(f"/GPU:{i}"):
                values.append(tf.ones([20, 20]) @ tf.ones([20, 20]))
        results.append(tuple(float(value.numpy()[0, 0]) for value in values))
    return results


def devices() -> list[str]:
    """Return the physical GPUs that the process sees, with the value of CUDA_VISIBLE_DEVICES."""
    return [os.environ.get("CUDA_VISIBLE_DEVICES", ""), *(d.name for d in tf.config.list_physical_devices("GPU"))]
