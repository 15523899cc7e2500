"""Weights in a smaller type. Every format multiplies in float32, by the values that `restored` returns."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.export import FLOAT16, FLOAT32, INT8

Floats = npt.NDArray[np.float32]
LARGEST = 127  # of int8; -128 is not used


class Stored(NamedTuple):
    """A weight as it is stored."""

    values: npt.NDArray[np.generic]  # float32, float16 or int8, in the weight's shape
    scales: Floats | None = None  # of int8, one for each index of `axis`
    axis: int = 0


def stored(weight: Floats, kind: str, rows: bool) -> Stored:
    """Return a weight in a type of WEIGHTS. Vectors stay float32: they are few, and biases have a wide range.

    int8 has a scale for each output of the product: a row of the embedding and of the projection, a column of the
    other matrices. rows: whether it is one of the former.
    """
    if kind == FLOAT32 or weight.ndim < 2:
        return Stored(weight)
    if kind == FLOAT16:
        limit = np.finfo(np.float16).max
        return Stored(weight.clip(-limit, limit).astype(np.float16))
    assert kind == INT8
    axis = 0 if rows else weight.ndim - 1
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scales = np.maximum(np.abs(weight).max(axis=others), 1e-12) / LARGEST
    return Stored(np.rint(weight / _along(scales, axis, weight.ndim)).astype(np.int8), scales.astype(np.float32), axis)


def restored(weight: Stored) -> Floats:
    """Return the values of a stored weight."""
    values = weight.values.astype(np.float32)
    return values if weight.scales is None else values * _along(weight.scales, weight.axis, values.ndim)


def _along(scales: Floats, axis: int, dimensions: int) -> Floats:
    """Return the scales in a shape that broadcasts over a weight."""
    return scales.reshape([-1 if i == axis else 1 for i in range(dimensions)])
