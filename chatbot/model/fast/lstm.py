"""An LSTM over the real tokens of a batch, on the CPU, with a gradient of its own.

TensorFlow's gradient of Keras's loop adds up the gradient of each weight matrix once a time step: twenty
times over six megabytes for 512 units, whatever the batch. Here the products with the inputs leave the loop, and
so does the gradient of the weights, as in cuDNN (Appleyard et al., 2016); rows that have ended leave it, too
(`packing`); and what the way back multiplies by is made before it begins, for all steps at once.
BENCHMARKS.md has what each is worth.
"""

from typing import Any

import tensorflow as tf

from chatbot.model.packing import Packing
from chatbot.model.product import product, rounded


def lstm_sequence(
    inputs: tf.Tensor,
    h: tf.Tensor,
    c: tf.Tensor,
    kernel: tf.Tensor,
    recurrent: tf.Tensor,
    bias: tf.Tensor,
    where: Packing,
    dtype: str = "float32",
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """What keras.layers.LSTM computes of real tokens: outputs [tokens, units], the last h and c [rows, units].

    inputs [tokens, features] packed, h and c [rows, units] to begin with, kernel [features, 4 units],
    recurrent [units, 4 units], bias [4 units], in Keras's order of gates: input, forget, candidate, output.
    dtype: what the factors of matrix products are rounded to; states and sums are not.
    """

    @tf.custom_gradient
    def run(*arguments: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
        inputs, h, c, kernel, recurrent, bias = arguments
        inputs, kernel, recurrent = (rounded(x, dtype) for x in (inputs, kernel, recurrent))
        projected = product(inputs, kernel, dtype) + bias  # [tokens, 4 units]
        first_h, first_c = tf.gather(h, where.order), tf.gather(c, where.order)
        gates, cs, hs = _forward(projected, first_h, first_c, recurrent, where, dtype)

        def gradient(d_hs: tf.Tensor, d_h: tf.Tensor, d_c: tf.Tensor) -> tuple[tf.Tensor, ...]:
            before_h = tf.gather(rounded(tf.concat([first_h, hs], 0), dtype), where.before)  # [tokens, units]
            before_c = tf.gather(tf.concat([first_c, cs], 0), where.before)
            d_h, d_c = tf.gather(d_h, where.order), tf.gather(d_c, where.order)
            d_z, d_h, d_c = _backward(d_hs, d_h, d_c, gates, cs, before_c, recurrent, where, dtype)
            return (
                product(d_z, kernel, dtype, transpose_b=True),
                tf.gather(d_h, where.back),
                tf.gather(d_c, where.back),
                product(inputs, d_z, dtype, transpose_a=True),
                product(before_h, d_z, dtype, transpose_a=True),
                tf.reduce_sum(tf.cast(d_z, projected.dtype), 0),
            )

        return (hs, tf.gather(hs, where.last), tf.gather(cs, where.last)), gradient

    return run(inputs, h, c, kernel, recurrent, bias)


def _arrays(number: int, units: int, dtype: tf.DType, where: Packing) -> list[tf.TensorArray]:
    """For what each step finds, whose rows become fewer, and for fillers behind it."""
    time, fillers = tf.shape(where.counts)[0], tf.zeros([where.fillers, units], dtype)
    arrays = (tf.TensorArray(dtype, time + 1, element_shape=[None, units], infer_shape=False) for _ in range(number))
    return [array.write(time, fillers) for array in arrays]


def _loop(condition: Any, step: Any, start: tuple[Any, ...], units: int) -> Any:
    """start: the step's number, two tensors of the rows that are there, arrays."""
    rows = tf.TensorShape([None, units])
    shapes = (tf.TensorShape([]), rows, rows, *(tf.TensorShape(None) for _ in start[3:]))
    return tf.while_loop(condition, step, start, shape_invariants=shapes)


def _forward(
    projected: tf.Tensor, h: tf.Tensor, c: tf.Tensor, recurrent: tf.Tensor, where: Packing, dtype: str
) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
    """Of each token the gates after their activation, then c and h, each [tokens, units]."""
    units = recurrent.shape[0]

    def step(t: tf.Tensor, h: tf.Tensor, c: tf.Tensor, *arrays: tf.TensorArray) -> tuple[Any, ...]:
        rows, start = where.counts[t], where.starts[t]
        z = projected[start : start + rows] + product(h[:rows], recurrent, dtype)  # [rows here, 4 units]
        i, f, g, o = tf.split(z, 4, axis=-1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        c = f * c[:rows] + i * g
        h = o * tf.tanh(c)
        found = zip(arrays, (i, f, g, o, c, h), strict=True)
        return t + 1, h, c, *(array.write(t, value) for array, value in found)

    time = tf.shape(where.counts)[0]
    arrays = _arrays(6, units, projected.dtype, where)
    _, _, _, *arrays = _loop(lambda t, *_: t < time, step, (0, h, c, *arrays), units)
    *gates, cs, hs = (tf.ensure_shape(array.concat(), [None, units]) for array in arrays)
    return gates, cs, hs


def _backward(
    d_hs: tf.Tensor,
    d_h: tf.Tensor,
    d_c: tf.Tensor,
    gates: list[tf.Tensor],
    cs: tf.Tensor,
    before_c: tf.Tensor,
    recurrent: tf.Tensor,
    where: Packing,
    dtype: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The gradients of what the gates saw [tokens, 4 units], rounded, and of the first h and c.

    d_hs [tokens, units] of the outputs; d_h, d_c [rows, units] of the last states, the longest row first.
    """
    units = recurrent.shape[0]
    if turned := dtype == "float32":  # whose products with a turned factor are half as fast; those of bfloat16 are not
        recurrent = tf.transpose(recurrent)
    i, f, g, o = gates
    bent = tf.tanh(cs)
    of_sigmoid, of_tanh = tf.raw_ops.SigmoidGrad, tf.raw_ops.TanhGrad  # one operation where formulas are three
    parts = of_sigmoid(y=i, dy=g), of_sigmoid(y=f, dy=before_c), of_tanh(y=g, dy=i), of_sigmoid(y=o, dy=bent)
    by = tf.concat(parts, -1)  # [tokens, 4 units]: of the first three gates by c, of the last by h
    c_by_h = of_tanh(y=bent, dy=o)

    def step(t: tf.Tensor, later_h: tf.Tensor, later_c: tf.Tensor, found: tf.TensorArray) -> tuple[Any, ...]:
        rows, start, going_on = where.counts[t], where.starts[t], tf.shape(later_h)[0]
        here = slice(start, start + rows)
        dh = tf.concat([later_h, d_h[going_on:rows]], 0) + d_hs[here]  # [rows here, units]
        dc = tf.concat([later_c, d_c[going_on:rows]], 0) + dh * c_by_h[here]
        d_z = rounded(tf.concat([dc, dc, dc, dh], -1) * by[here], dtype)  # [rows here, 4 units]
        return t - 1, product(d_z, recurrent, dtype, transpose_b=not turned), dc * f[here], found.write(t, d_z)

    time = tf.shape(where.counts)[0]
    nobody = tf.zeros([0, units], d_hs.dtype)
    (array,) = _arrays(1, 4 * units, recurrent.dtype, where)
    _, d_h, d_c, found = _loop(lambda t, *_: t >= 0, step, (time - 1, nobody, nobody, array), units)
    return tf.ensure_shape(found.concat(), [None, 4 * units]), d_h, d_c
