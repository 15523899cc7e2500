"""Whether the model is computed on a GPU, which decides between ways of computing its recurrent layers and its loss.

TensorFlow traces a function without the device that it is called on. So the caller of the model says where it computes:
`computed_on` for a function that is traced once and called on several devices, else `placed_on`.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import tensorflow as tf

_chosen = ContextVar("on_gpu", default=False)


def is_gpu(device: str) -> bool:
    """Return whether a device of TensorFlow, such as "/GPU:0", is a GPU."""
    return "GPU" in device


def on_gpu() -> bool:
    """Return whether the layers that are called now compute on a GPU: by default they do not."""
    return _chosen.get()


@contextlib.contextmanager
def computed_on(device: str) -> Iterator[None]:
    """Let the layers that this thread calls in the block choose for a device. The operations are not placed on it."""
    token = _chosen.set(is_gpu(device))
    try:
        yield
    finally:
        _chosen.reset(token)


@contextlib.contextmanager
def placed_on(device: str) -> Iterator[None]:
    """Place operations and calls of traced functions on a device in the block, and let layers choose for it."""
    with tf.device(device), computed_on(device):
        yield


def size_on_device(vector: tf.Tensor) -> tf.Tensor:
    """Return the number of elements of a vector, scalar int64, counted on its device.

    tf.size gives it on the host, from where it would be copied to a GPU for each computation with tensors there.
    """
    return tf.reduce_sum(tf.ones_like(vector, tf.int64))
