"""Operations whose form depends on the precision of matrix products, or on the device that computes them.

precision, in every function and layer of the model: "float32", "bfloat16" or "float16", the type that the factors of
matrix products are rounded to, and their results. The sum of a product is float32 (tried on a CPU) and rounded once:
TensorFlow 2.21 has no kernel of a CPU or GPU with these factors and a float32 result. So in bfloat16, the gradients of
weights and the logits have 8 bits, too. Weights, states and other sums are float32.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled


def is_gpu(device: str) -> bool:
    """Return whether a device of TensorFlow, such as "/GPU:0", is a GPU."""
    return "GPU" in device


def size_on_device(vector: tf.Tensor) -> tf.Tensor:
    """Return the number of elements of a vector, scalar int64, counted on its device.

    tf.size gives it on the host, from where it would be copied to a GPU for each computation with tensors there.
    """
    return tf.reduce_sum(tf.ones_like(vector, tf.int64))


POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def policy(precision: str) -> str:
    """Return the name of Keras's dtype policy at this precision."""
    return POLICIES[precision]


def matmul(
    a: tf.Tensor, b: tf.Tensor, precision: str, transpose_a: bool = False, transpose_b: bool = False
) -> tf.Tensor:
    """Return the product a b, of the type of the factors (tests use float64); rounded like them, it is float32 again.

    A factor of several products may be rounded beforehand by `rounded`.
    """
    if precision == "float32":
        return tf.matmul(a, b, transpose_a, transpose_b)
    product = tf.matmul(tf.cast(a, precision), tf.cast(b, precision), transpose_a, transpose_b)
    return tf.cast(product, tf.float32)


def rounded(x: tf.Tensor, precision: str) -> tf.Tensor:
    """Round x as `matmul` rounds its factors."""
    return x if precision == "float32" else tf.cast(x, precision)


def with_gradient(forward: Callable[..., Any], backward: Callable[..., Any], *inputs: tf.Tensor) -> Any:
    """Return forward(*inputs). backward: from the gradients of its results, returns those of the inputs."""
    return tf.custom_gradient(lambda *inputs: (forward(*inputs), backward))(*inputs)


def joined(*parts: tf.Tensor) -> tf.Tensor:
    """[..., size] each -> [..., sum of the sizes], which are known. The gradient of tf.concat computes shapes."""
    sizes = [part.shape[-1] for part in parts]
    return with_gradient(lambda *x: tf.concat(x, -1), lambda gradient: tf.split(gradient, sizes, -1), *parts)


def scatter_add(tensor: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor, on_gpu: bool) -> tf.Tensor:
    """Return the tensor with updates added at indices, of which several may be equal.

    tensor [d1, ..., dn], indices [..., k] int64, updates [..., dk+1, ..., dn]; the sizes d2 to dk are known.

    If operations must be deterministic, the host would compute the scatter of a GPU; a sum of segments stays there.
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
