"""tf.tensor_scatter_nd_add, which stays on a GPU with --deterministic, too."""

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from chatbot.model.gpu import on_gpu


def scatter_add(tensor: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    """Return the tensor with updates added at indices, of which several may be equal.

    tensor [d1, ..., dn], indices [..., k] int64, updates [..., dk+1, ..., dn]; the sizes d2 to dk are known.

    If operations must be deterministic, the host computes TensorFlow's scatter operations of a GPU, so that the whole
    tensor would be copied there and back. A sum of segments stays on the GPU. It is not always used, since it passes
    over the tensor once more.
    """
    if not (on_gpu() and is_op_determinism_enabled()):
        return tf.tensor_scatter_nd_add(tensor, indices, updates)
    depth = indices.shape[-1]
    shape = tf.shape(tensor)
    segments = indices[..., 0]
    for i in range(1, depth):
        segments = segments * tensor.shape[i] + indices[..., i]
    sums = tf.math.unsorted_segment_sum(updates, segments, tf.reduce_prod(shape[:depth]))
    return tensor + tf.reshape(sums, shape)
