"""Arrays in one buffer, which one copy, one call of the driver, brings to a GPU, where the step takes them apart."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class Buffer(NamedTuple):
    """The arrays of a structure: arrays on the host, tensors in a graph. int32 stays in the host's memory."""

    content: Any  # [bytes] int8, of all arrays that are not int32; TensorFlow's GPU kernel of tf.slice has no uint8
    layout: Any  # [numbers] int32, for each of these arrays: its first byte, its number of bytes, its shape in bytes
    on_host: tuple[Any, ...]  # the int32 arrays


def buffer_of(arrays: Any) -> Buffer:
    """Return the buffer of a structure of arrays, at least one of which is neither int32 nor empty."""
    content, layout, on_host, begin = [], [], [], 0
    for array in map(np.asarray, tf.nest.flatten(arrays)):
        if array.dtype == np.int32:
            on_host.append(array)
            continue
        content.append(array.tobytes())
        layout += [begin, array.nbytes, *array.shape, *_bytes_of_item(tf.as_dtype(array.dtype))]
        begin += array.nbytes
    return Buffer(np.frombuffer(b"".join(content), np.int8), np.array(layout, np.int32), tuple(on_host))


def tensors_of(buffer: Buffer, specs: Any) -> Any:
    """Return the tensors of a buffer, on the device of the caller. specs: in the structure that `buffer_of` took."""
    in_content = [spec for spec in tf.nest.flatten(specs) if spec.dtype != tf.int32]
    sizes = [n for spec in in_content for n in (1, 1, spec.shape.rank + len(_bytes_of_item(spec.dtype)))]
    layout, on_host = iter(tf.split(buffer.layout, sizes)), iter(buffer.on_host)

    def tensor(spec: tf.TensorSpec) -> tf.Tensor:
        if spec.dtype == tf.int32:
            return next(on_host)
        begin, size, shape = next(layout), next(layout), next(layout)
        of_array = tf.reshape(tf.slice(buffer.content, begin, size), shape)
        # TensorFlow has no bitcast to bool.
        return tf.cast(of_array, tf.bool) if spec.dtype == tf.bool else tf.bitcast(of_array, spec.dtype)

    return tf.nest.map_structure(tensor, specs)


def _bytes_of_item(dtype: tf.DType) -> list[int]:
    """Return the last dimension of an array in bytes, which tf.bitcast wants for types of several bytes."""
    return [dtype.size] if dtype.size > 1 else []
