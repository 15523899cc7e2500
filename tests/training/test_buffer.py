"""Arrays come out of a buffer as they went in, for all types and sizes, and one graph takes all sizes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from chatbot.model.sequences import specs_of
from chatbot.training.share import Buffer, buffer_of, tensors_of
from chatbot.training.step import Graph

TYPES = ("bool", "int32", "float32", "int64", "uint64")  # those of a share
ARRAYS = st.sampled_from(TYPES).flatmap(
    lambda dtype: arrays(
        dtype,
        array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
        elements={"allow_subnormal": False} if dtype == "float32" else None,
    )
)


def assert_equal(actual: Any, expected: npt.NDArray[Any]) -> None:
    """Type, shape and values, NaN and the sign of zero included."""
    assert (actual.numpy().dtype, actual.numpy().shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(actual.numpy(), expected)
    if expected.dtype == np.float32:
        np.testing.assert_array_equal(np.signbit(actual.numpy()), np.signbit(expected))


@given(st.lists(ARRAYS, max_size=6), st.booleans())
def test_arrays_come_out_as_they_went_in(some: list[npt.NDArray[Any]], transposed: bool) -> None:
    """Empty arrays, scalars, arrays that are not contiguous, integers with the bits of a NaN."""
    structure = {"some": [array.T if transposed else array for array in some], "none": (), "last": np.float32(0.5)}
    found = tensors_of(tf.nest.map_structure(tf.convert_to_tensor, buffer_of(structure)), specs_of(structure))
    tf.nest.map_structure(assert_equal, found, structure)


def test_one_graph_takes_all_sizes() -> None:
    def structure(rows: int, time: int) -> dict[str, npt.NDArray[Any]]:
        ids = np.arange(rows * time).reshape(rows, time)
        return {"ids": ids, "mask": ids % 3 == 0, "lengths": ids[:, 0].astype(np.int32)}

    specs = specs_of(structure(1, 1))
    graph = Graph(lambda buffer: tensors_of(buffer, specs))
    for rows, time in ((1, 1), (3, 5), (7, 2), (0, 4)):
        buffer = tf.nest.map_structure(tf.convert_to_tensor, buffer_of(structure(rows, time)))
        tf.nest.map_structure(assert_equal, graph(buffer), structure(rows, time))
    assert graph.traces == 1


def test_int32_arrays_are_not_in_the_content() -> None:
    """TensorFlow would copy them to the device and back."""
    buffer = buffer_of([np.arange(5, dtype=np.int32), np.ones(2, np.int64)])
    assert isinstance(buffer, Buffer)
    assert buffer.content.nbytes == 16
    assert [array.tolist() for array in buffer.on_host] == [[0, 1, 2, 3, 4]]
    assert buffer.layout.dtype == np.int32
