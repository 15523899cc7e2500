"""Tensor operations that depend on the precision of matrix products or on the device.

The precision is "float32", "bfloat16" or "float16". The factors and the results of matrix products are rounded to this
dtype. Weights, states and all other computations remain float32.

In bfloat16, even the logits and the gradients of the weights have only 8 significant bits, because TensorFlow 2.21
cannot multiply 16-bit matrices with a float32 result.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

# Keras's dtype policy for each precision.
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def is_gpu(device: str) -> bool:
    """Return whether a TensorFlow device, such as "/GPU:0", is a GPU."""
    return "GPU" in device


def size_on_device(vector: tf.Tensor) -> tf.Tensor:
    """Return the number of elements of a vector as a scalar int64 tensor on the vector's device.

    In contrast, tf.size returns the number on the host, from which it would be copied to the GPU for each use.
    """
    return tf.reduce_sum(tf.ones_like(vector, tf.int64))


def matmul(
    a: tf.Tensor, b: tf.Tensor, precision: str, transpose_a: bool = False, transpose_b: bool = False
) -> tf.Tensor:
    """Multiply two matrices at a precision.

    If a matrix is a factor of several products, `to_precision` can round it in advance.

    Returns:
        The product, with dtype float32. At precision "float32", it has the dtype of the factors.
    """
    if precision == "float32":
        return tf.matmul(a, b, transpose_a, transpose_b)
    product = tf.matmul(tf.cast(a, precision), tf.cast(b, precision), transpose_a, transpose_b)
    return tf.cast(product, tf.float32)


def to_precision(x: tf.Tensor, precision: str) -> tf.Tensor:
    """Round a tensor to a precision, as `matmul` does with its factors."""
    return x if precision == "float32" else tf.cast(x, precision)


def with_gradient(forward: Callable[..., Any], backward: Callable[..., Any], *inputs: tf.Tensor) -> Any:
    """Compute `forward(*inputs)` with a custom gradient.

    Args:
        forward: The function to compute.
        backward: A function that maps the gradients of the results to the gradients of the inputs.
        *inputs: The arguments of `forward`.
    """
    return tf.custom_gradient(lambda *inputs: (forward(*inputs), backward))(*inputs)


def concat_features(*parts: tf.Tensor) -> tf.Tensor:
    """Concatenate tensors along the last axis, whose size must be static.

    The gradient is faster than that of tf.concat, because it does not compute shapes.
    """
    sizes = [part.shape[-1] for part in parts]
    return with_gradient(lambda *x: tf.concat(x, -1), lambda gradient: tf.split(gradient, sizes, -1), *parts)


def scatter_add(tensor: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor, on_gpu: bool) -> tf.Tensor:
    """Add updates to a tensor at indices, which can repeat.

    On a GPU with deterministic operations, this function sums segments, because TensorFlow would scatter on the host.

    Args:
        tensor: The tensor, [d1, ..., dn]. The sizes d2 to dk must be static.
        indices: The indices, [..., k] int64.
        updates: The values to add, [..., d(k + 1), ..., dn].
        on_gpu: Whether the tensor is on a GPU.
    """
    if not (on_gpu and is_op_determinism_enabled()):
        return tf.tensor_scatter_nd_add(tensor, indices, updates)
    depth = indices.shape[-1]
    shape = tf.shape(tensor)
    segments = indices[..., 0]
    for i in range(1, depth):
        segments = segments * tensor.shape[i] + indices[..., i]
    sums = tf.math.unsorted_segment_sum(updates, segments, tf.reduce_prod(shape[:depth]))
    return tensor + tf.reshape(sums, shape)
