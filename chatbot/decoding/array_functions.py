"""Array functions with the same interface for NumPy and TensorFlow, so decoding code works with both.

Searches in TensorFlow graphs use TensorFlow. Everything else uses NumPy. Reductions are along the last axis, which is
kept with size 1.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

# A NumPy array or a TensorFlow tensor.
Array = Any
# NumPy arrays of real numbers, such as log-probabilities, and of token ids.
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
INFINITY = np.float32(np.inf)


class NumpyFunctions:
    """The array functions for NumPy arrays."""

    where = staticmethod(np.where)
    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)
    reshape = staticmethod(np.reshape)
    concatenate = staticmethod(np.concatenate)
    zeros_like = staticmethod(np.zeros_like)
    log1p = staticmethod(np.log1p)

    float32 = staticmethod(partial(np.asarray, dtype=np.float32))
    int64 = staticmethod(partial(np.asarray, dtype=np.int64))
    # The sum along the last axis. The sum of booleans is the number of true values, with dtype int64.
    sum = staticmethod(partial(np.sum, axis=-1, keepdims=True))
    max = staticmethod(partial(np.max, axis=-1, keepdims=True))
    min = staticmethod(partial(np.min, axis=-1, keepdims=True))
    cumulative_sum = staticmethod(partial(np.cumsum, axis=-1))
    argmax = staticmethod(partial(np.argmax, axis=-1))  # removes the last axis
    searchsorted = staticmethod(np.searchsorted)  # insertion indices into a sorted vector, [values] int64
    shape = staticmethod(np.shape)
    pad = staticmethod(np.pad)

    @staticmethod
    def log_softmax(x: Array) -> Array:
        """Return the log-softmax along the last axis. It is -inf for logits of -inf."""
        shifted = x - x.max(axis=-1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return shifted

    @staticmethod
    def kth_largest(x: Array, k: int) -> Array:
        """Return the kth largest value along the last axis; k = 1 is the maximum."""
        return np.partition(x, -k)[..., -k, None]

    @staticmethod
    def largest(x: Array, k: int) -> npt.NDArray[np.int64]:
        """Return the indices of the k largest values in each row, with shape [rows, k].

        The largest value comes first. For equal values, the lower index comes first.
        """
        return np.stack([largest_indices(row, k) for row in x])

    @staticmethod
    def mapped(function: Callable[..., Array], *structures: Any) -> Any:
        """Apply a function to each array of a nested structure, or to corresponding arrays of several structures."""
        first = structures[0]
        if isinstance(first, dict):
            return {name: NumpyFunctions.mapped(function, *(x[name] for x in structures)) for name in first}
        if isinstance(first, (list, tuple)):
            parts = [NumpyFunctions.mapped(function, *x) for x in zip(*structures, strict=True)]
            return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
        return function(*structures)

    @staticmethod
    def rows(arrays: Any, indices: Array) -> Any:
        """Select rows of each array in a structure. The results have shape indices.shape + array.shape[1:]."""
        return NumpyFunctions.mapped(lambda x: x[indices], arrays)

    @staticmethod
    def repeated(arrays: Any, times: Any) -> Any:
        """Repeat each row of each array in a structure. The copies of a row are adjacent."""
        return NumpyFunctions.mapped(lambda x: np.repeat(x, times, axis=0), arrays)

    @staticmethod
    def array(x: Any) -> Array:
        """Convert a NumPy constant to an array or tensor."""
        return x

    @staticmethod
    def row_numbers(x: Array) -> npt.NDArray[np.int64]:
        """Return the index of each row, with shape [rows, 1] and dtype int64."""
        return np.arange(len(x))[:, None]

    @staticmethod
    def column(x: Array, value: Any) -> npt.NDArray[np.int64]:
        """Return a column with the same value in each row, and as many rows as x, [rows, 1] int64."""
        return np.full((len(x), 1), value, np.int64)

    @staticmethod
    def cond(condition: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
        """Call `if_true` if the condition is true, otherwise `if_false`, and return the result."""
        return if_true() if condition else if_false()

    @staticmethod
    def take(x: Array, indices: Array) -> Array:
        """Select elements of each row.

        Args:
            x: An array with shape [rows, elements, ...].
            indices: The indices of the elements, with shape [rows, number].

        Returns:
            The selected elements, with shape [rows, number, ...].
        """
        return x[np.arange(len(x))[:, None], indices]

    @staticmethod
    def put(x: Array, indices: Array, values: Array) -> Array:
        """Return a copy of x with some elements of each row replaced.

        Args:
            x: An array with shape [rows, elements].
            indices: The indices of the elements, with shape [rows, number]. Equal indices must have equal values.
            values: The new values, with shape [rows, number].
        """
        result = x.copy()
        np.put_along_axis(result, indices, values, axis=1)
        return result

    @staticmethod
    def forbid(x: Array, indices: Array, are_forbidden: Array) -> Array:
        """Return a copy of x with forbidden elements set to -inf.

        Args:
            x: An array with shape [rows, elements].
            indices: The indices of some elements, with shape [rows, number].
            are_forbidden: Whether each of these elements is forbidden, with shape [rows, number].
        """
        result = x.copy()
        rows, columns = np.nonzero(are_forbidden)
        result[rows, indices[rows, columns]] = -INFINITY
        return result

    @staticmethod
    def ranges(first: Array, last: Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Concatenate the ranges of integers from `first` to `last` (exclusive) of all rows.

        Returns:
            The row index of each integer, and the integers, both with shape [integers].
        """
        sizes = last - first
        rows = np.repeat(np.arange(len(sizes)), sizes)
        return rows, np.arange(len(rows)) - (np.cumsum(sizes) - sizes - first)[rows]

    @staticmethod
    def add_at(x: Array, rows: Array, columns: Array, values: Array) -> Array:
        """Return a copy of a matrix x with values added to some elements, which must be distinct."""
        result = x.copy()
        result[rows, columns] += values
        return result

    @staticmethod
    def needed_columns(are_needed: Array) -> Any:
        """Return an index that selects all columns that at least one row needs. The mask has shape [rows, columns]."""
        return np.flatnonzero(are_needed.any(axis=0))


def largest_indices(values: Array, number: int) -> npt.NDArray[np.int64]:
    """Return the indices of the `number` largest values of a vector, or all indices if there are fewer values.

    The largest value comes first. For equal values, the lower index comes first.
    """
    indices = np.arange(len(values))
    if 0 < number < len(values):
        threshold = np.partition(values, -number)[-number]
        indices = np.flatnonzero(~(values < threshold))  # NaN is included, but sorted last.
    return indices[np.argsort(-values[indices], kind="stable")[:number]]


def functions_of(array: Array) -> Any:
    """Return `NumpyFunctions` for a NumPy array, `TensorFunctions` for a tensor."""
    if isinstance(array, np.ndarray):
        return NumpyFunctions
    from chatbot.decoding.tensor_functions import TensorFunctions  # TensorFlow is optional, so import it late.

    return TensorFunctions
