"""The functions of arrays in which each formula of decoding is written, for NumPy and for TensorFlow.

NumPy computes where no graph is wanted: in the server's batches and in exports, which need no TensorFlow. TensorFlow
computes within the graph of a search. "Last" means the last axis, which sums and the like keep, with size 1.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

# An array of NumPy or a tensor of TensorFlow.
Array = Any
INFINITY = np.float32(np.inf)


class NumpyFunctions:
    """The functions of NumPy arrays."""

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
    # Over the last axis; of truth values the sum is their number, int64.
    sum = staticmethod(partial(np.sum, axis=-1, keepdims=True))
    max = staticmethod(partial(np.max, axis=-1, keepdims=True))
    min = staticmethod(partial(np.min, axis=-1, keepdims=True))
    cumulative_sum = staticmethod(partial(np.cumsum, axis=-1))
    argmax = staticmethod(partial(np.argmax, axis=-1))  # without that axis
    searchsorted = staticmethod(np.searchsorted)  # the number of smaller elements of a sorted vector, [values] int64
    length = staticmethod(len)

    @staticmethod
    def log_softmax(x: Array) -> Array:
        """Return the logarithm of the softmax over the last axis; -inf stays -inf."""
        shifted = x - x.max(axis=-1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return shifted

    @staticmethod
    def kth_largest(x: Array, k: int) -> Array:
        """Return the kth largest value of the last axis, k from 1."""
        return np.partition(x, -k, axis=-1)[..., -k, None]

    @staticmethod
    def largest(x: Array, k: int) -> npt.NDArray[np.int64]:
        """Return the indices of the k largest values of each row, the largest first; of equal ones the first.

        x: [rows, values]. The result is [rows, k].
        """
        return np.stack([_largest(row, k) for row in x])

    @staticmethod
    def rows(arrays: Any, indices: Array) -> Any:
        """Return rows of an array or of each in a structure, indices.shape + array.shape[1:]."""
        return _mapped(lambda x: x[indices], arrays)

    @staticmethod
    def repeated(arrays: Any, times: Any) -> Any:
        """Return each row of an array or of each in a structure as many times, one after another."""
        return _mapped(lambda x: np.repeat(x, times, axis=0), arrays)

    @staticmethod
    def array(x: Any) -> Array:
        """Return a constant."""
        return x

    @staticmethod
    def row_numbers(x: Array) -> npt.NDArray[np.int64]:
        """Return the number of each row, [rows, 1] int64."""
        return np.arange(len(x))[:, None]

    @staticmethod
    def column(x: Array, value: Any) -> npt.NDArray[np.int64]:
        """Return a number for each row, [rows, 1] int64."""
        return np.full((len(x), 1), value, np.int64)

    @staticmethod
    def cond(condition: Any, of_true: Callable[[], Any], of_false: Callable[[], Any]) -> Any:
        """Return the result of one of two functions, which return the same structure."""
        return of_true() if condition else of_false()

    @staticmethod
    def take(x: Array, indices: Array) -> Array:
        """Return elements of each row, [rows, number, ...]. x: [rows, elements, ...]. indices: [rows, number]."""
        return x[np.arange(len(x))[:, None], indices]

    @staticmethod
    def put(x: Array, indices: Array, values: Array) -> Array:
        """Return x with new values at some indices of each row; equal indices of a row need equal values.

        x: [rows, elements]. indices, values: [rows, number].
        """
        result = x.copy()
        np.put_along_axis(result, indices, values, axis=1)
        return result

    @staticmethod
    def with_zeros(x: Array, number: int) -> Array:
        """Return x with a number of columns of 0 behind its own. x: [rows, columns]."""
        return np.concatenate([x, np.zeros((len(x), number), x.dtype)], axis=1)

    @staticmethod
    def forbid(x: Array, indices: Array, are_forbidden: Array) -> Array:
        """Return x with -inf at some indices of each row. indices, are_forbidden: [rows, number]."""
        result = x.copy()
        rows, places = np.nonzero(are_forbidden)
        result[rows, indices[rows, places]] = -INFINITY
        return result

    @staticmethod
    def ranges(first: Array, last: Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the row of each number, and the numbers of each row from its first to before its last: [numbers]."""
        sizes = last - first
        rows = np.repeat(np.arange(len(sizes)), sizes)
        return rows, np.arange(len(rows)) - (np.cumsum(sizes) - sizes - first)[rows]

    @staticmethod
    def add_at(x: Array, rows: Array, columns: Array, values: Array) -> Array:
        """Return x with values added to some elements, to each at most once. x: [rows, columns]."""
        result = x.copy()
        result[rows, columns] += values
        return result

    @staticmethod
    def needed_columns(are_needed: Array) -> Any:
        """Return an index of the columns that a row needs, or of all. are_needed: [rows, columns]."""
        return np.flatnonzero(are_needed.any(axis=0))


def _mapped(function: Callable[[Array], Array], arrays: Any) -> Any:
    if isinstance(arrays, dict):
        return {name: _mapped(function, x) for name, x in arrays.items()}
    if isinstance(arrays, (list, tuple)):
        parts = [_mapped(function, x) for x in arrays]
        return type(arrays)(*parts) if hasattr(arrays, "_fields") else type(arrays)(parts)
    return function(arrays)


def _largest(values: Array, number: int) -> npt.NDArray[np.int64]:
    least = np.partition(values, -number)[-number]
    places = np.flatnonzero(~(values < least))  # those that are no number, too: last, where numbers are too few
    return places[np.argsort(-values[places], kind="stable")[:number]]


def functions_of(array: Array) -> Any:
    """Return the functions for arrays of this kind, as `NumpyFunctions` lists them."""
    if isinstance(array, np.ndarray):
        return NumpyFunctions
    from chatbot.decoding.tensor_functions import TensorFunctions  # exports need no TensorFlow

    return TensorFunctions
