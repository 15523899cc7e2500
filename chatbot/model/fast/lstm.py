"""An LSTM over the real tokens of a batch, for the CPU, with a custom gradient.

TensorFlow's gradient of Keras's loop adds up the gradients of the weights at each time step: six megabytes a step at
512 units. Here the products with the inputs and the gradients of the weights are computed outside the loop, for all
steps at once, as in cuDNN (Appleyard et al., 2016), and so are the local derivatives of the backward pass. Rows that
have ended are left out of the loop (`packing`). BENCHMARKS.md measures the effect of each.
"""

from typing import Any

import tensorflow as tf

from chatbot.model.matmul import matmul, rounded
from chatbot.model.packing import Packing


def lstm_sequence(
    inputs: tf.Tensor,
    h: tf.Tensor,
    c: tf.Tensor,
    kernel: tf.Tensor,
    recurrent: tf.Tensor,
    bias: tf.Tensor,
    packing: Packing,
    precision: str = "float32",
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Compute keras.layers.LSTM for the real tokens. Return outputs [tokens, units], the last h and c [rows, units].

    inputs [tokens, features], packed; h and c [rows, units], the first state; kernel [features, 4 units],
    recurrent [units, 4 units], bias [4 units], with the gates in Keras's order: input, forget, candidate, output.
    """

    @tf.custom_gradient
    def run(*arguments: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
        inputs, h, c, kernel, recurrent, bias = arguments
        inputs, kernel, recurrent = (rounded(x, precision) for x in (inputs, kernel, recurrent))
        projected = matmul(inputs, kernel, precision) + bias  # [tokens, 4 units]
        first_h, first_c = tf.gather(h, packing.order), tf.gather(c, packing.order)
        gates, cs, hs = _forward(projected, first_h, first_c, recurrent, packing, precision)

        def gradient(d_hs: tf.Tensor, d_h: tf.Tensor, d_c: tf.Tensor) -> tuple[tf.Tensor, ...]:
            previous_h = tf.gather(rounded(tf.concat([first_h, hs], 0), precision), packing.previous)  # [tokens, units]
            previous_c = tf.gather(tf.concat([first_c, cs], 0), packing.previous)
            d_h, d_c = tf.gather(d_h, packing.order), tf.gather(d_c, packing.order)
            d_z, d_h, d_c = _backward(d_hs, d_h, d_c, gates, cs, previous_c, recurrent, packing, precision)
            ones = tf.ones([1, tf.shape(d_z)[0]], d_z.dtype)  # a product with ones is faster than tf.reduce_sum
            return (
                matmul(d_z, kernel, precision, transpose_b=True),
                tf.gather(d_h, packing.inverse_order),
                tf.gather(d_c, packing.inverse_order),
                matmul(inputs, d_z, precision, transpose_a=True),
                matmul(previous_h, d_z, precision, transpose_a=True),
                matmul(ones, d_z, precision)[0],
            )

        return (hs, tf.gather(hs, packing.last), tf.gather(cs, packing.last)), gradient

    return run(inputs, h, c, kernel, recurrent, bias)


def _arrays(number: int, units: int, dtype: tf.DType, packing: Packing) -> list[tf.TensorArray]:
    """Return arrays for the results of each step, [rows at the step, units], with the fillers after the last step."""
    time, fillers = tf.shape(packing.counts)[0], tf.zeros([packing.fillers, units], dtype)
    arrays = (tf.TensorArray(dtype, time + 1, element_shape=[None, units], infer_shape=False) for _ in range(number))
    return [array.write(time, fillers) for array in arrays]


def _loop(condition: Any, step: Any, start: tuple[Any, ...], units: int) -> Any:
    """tf.while_loop over (step number, two tensors [rows at the step, units], *arrays)."""
    rows = tf.TensorShape([None, units])
    shapes = (tf.TensorShape([]), rows, rows, *(tf.TensorShape(None) for _ in start[3:]))
    return tf.while_loop(condition, step, start, shape_invariants=shapes)


def _forward(
    projected: tf.Tensor, h: tf.Tensor, c: tf.Tensor, recurrent: tf.Tensor, packing: Packing, precision: str
) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
    """Return the four gates after their activation, c and h of each token, each [tokens, units]."""
    units = recurrent.shape[0]

    def step(t: tf.Tensor, h: tf.Tensor, c: tf.Tensor, *arrays: tf.TensorArray) -> tuple[Any, ...]:
        rows, start = packing.counts[t], packing.starts[t]
        z = projected[start : start + rows] + matmul(h[:rows], recurrent, precision)  # [rows at the step, 4 units]
        i, f, g, o = tf.split(z, 4, axis=-1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        c = f * c[:rows] + i * g
        h = o * tf.tanh(c)
        results = zip(arrays, (i, f, g, o, c, h), strict=True)
        return t + 1, h, c, *(array.write(t, value) for array, value in results)

    time = tf.shape(packing.counts)[0]
    arrays = _arrays(6, units, projected.dtype, packing)
    _, _, _, *arrays = _loop(lambda t, *_: t < time, step, (0, h, c, *arrays), units)
    *gates, cs, hs = (tf.ensure_shape(array.concat(), [None, units]) for array in arrays)
    return gates, cs, hs


def _backward(
    d_hs: tf.Tensor,
    d_h: tf.Tensor,
    d_c: tf.Tensor,
    gates: list[tf.Tensor],
    cs: tf.Tensor,
    previous_c: tf.Tensor,
    recurrent: tf.Tensor,
    packing: Packing,
    precision: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the gradients with respect to z and to the first h and c, each [rows, units].

    z: the gates before activation; its gradient is [tokens, 4 units], rounded. d_hs [tokens, units]: the gradient with
    respect to the outputs. d_h and d_c [rows, units]: those with respect to the last states. Rows are in packing.order.
    """
    units = recurrent.shape[0]
    # In float32, a product with a matrix that is transposed beforehand is twice as fast; in bfloat16 it is not.
    if transposed := precision == "float32":
        recurrent = tf.transpose(recurrent)
    i, f, g, o = gates
    tanh_c = tf.tanh(cs)
    sigmoid_grad, tanh_grad = tf.raw_ops.SigmoidGrad, tf.raw_ops.TanhGrad  # one operation each, not three
    # Derivatives: of c with respect to z of the first three gates, of h with respect to z of the output gate.
    local = (
        sigmoid_grad(y=i, dy=g),
        sigmoid_grad(y=f, dy=previous_c),
        tanh_grad(y=g, dy=i),
        sigmoid_grad(y=o, dy=tanh_c),
    )
    by_z = tf.concat(local, -1)  # [tokens, 4 units]
    h_by_c = tanh_grad(y=tanh_c, dy=o)  # [tokens, units]

    def step(t: tf.Tensor, later_h: tf.Tensor, later_c: tf.Tensor, array: tf.TensorArray) -> tuple[Any, ...]:
        rows, start, later_rows = packing.counts[t], packing.starts[t], tf.shape(later_h)[0]
        tokens = slice(start, start + rows)
        # Rows that end at this step start from the gradient of their last state.
        dh = tf.concat([later_h, d_h[later_rows:rows]], 0) + d_hs[tokens]  # [rows at the step, units]
        dc = tf.concat([later_c, d_c[later_rows:rows]], 0) + dh * h_by_c[tokens]
        d_z = rounded(tf.concat([dc, dc, dc, dh], -1) * by_z[tokens], precision)  # [rows at the step, 4 units]
        d_previous_h = matmul(d_z, recurrent, precision, transpose_b=not transposed)
        return t - 1, d_previous_h, dc * f[tokens], array.write(t, d_z)

    time = tf.shape(packing.counts)[0]
    no_rows = tf.zeros([0, units], d_hs.dtype)
    (array,) = _arrays(1, 4 * units, recurrent.dtype, packing)
    _, d_h, d_c, array = _loop(lambda t, *_: t >= 0, step, (time - 1, no_rows, no_rows, array), units)
    return tf.ensure_shape(array.concat(), [None, 4 * units]), d_h, d_c
