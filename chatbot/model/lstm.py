"""An LSTM over a whole sequence on the CPU, with a gradient of its own.

TensorFlow's gradient of Keras's loop adds up the gradient of each weight matrix once a time step: twenty
times over six megabytes for 512 units, whatever the batch. Here the loop back in time keeps what it found
for each step, and one product at the end makes the gradient of all of them; the products with the inputs
leave the loop, too, as cuDNN does it (Appleyard et al., 2016). BENCHMARKS.md has what that is worth.
"""

from typing import Any

import tensorflow as tf


def lstm_sequence(
    inputs: tf.Tensor,
    h: tf.Tensor,
    c: tf.Tensor,
    kernel: tf.Tensor,
    recurrent: tf.Tensor,
    bias: tf.Tensor,
    mask: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """What keras.layers.LSTM computes: outputs [rows, time, units], the last h and c [rows, units].

    inputs [rows, time, features], h and c [rows, units] to begin with, kernel [features, 4 units],
    recurrent [units, 4 units], bias [4 units], in Keras's order of gates: input, forget, candidate, output.
    mask [rows, time] bool: at False a row keeps its state, and its output is the one before.
    """
    keep = None if mask is None else tf.transpose(mask)[:, :, None]  # [time, rows, 1]

    @tf.custom_gradient
    def run(*arguments: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
        inputs, h, c, kernel, recurrent, bias = arguments
        by_time = tf.transpose(inputs, [1, 0, 2])  # [time, rows, features]
        projected = tf.tensordot(by_time, kernel, 1) + bias  # [time, rows, 4 units]
        gates, hs, cs = _forward(projected, h, c, recurrent, keep)

        def gradient(d_outputs: tf.Tensor, d_h: tf.Tensor, d_c: tf.Tensor) -> tuple[tf.Tensor, ...]:
            before_h = tf.concat([h[None], hs[:-1]], axis=0)  # [time, rows, units]
            before_c = tf.concat([c[None], cs[:-1]], axis=0)
            d_outputs = tf.transpose(d_outputs, [1, 0, 2])
            d_z, d_h, d_c = _backward(d_outputs, d_h, d_c, gates, cs, before_c, recurrent, keep)
            d_inputs = tf.transpose(tf.tensordot(d_z, kernel, [[2], [1]]), [1, 0, 2])
            d_kernel = tf.tensordot(by_time, d_z, [[0, 1], [0, 1]])
            d_recurrent = tf.tensordot(before_h, d_z, [[0, 1], [0, 1]])
            return d_inputs, d_h, d_c, d_kernel, d_recurrent, tf.reduce_sum(d_z, axis=[0, 1])

        return (tf.transpose(hs, [1, 0, 2]), hs[-1], cs[-1]), gradient

    return run(inputs, h, c, kernel, recurrent, bias)


def _forward(
    projected: tf.Tensor, h: tf.Tensor, c: tf.Tensor, recurrent: tf.Tensor, keep: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """For each step the gates after their activation [time, rows, 4 units], h and c [time, rows, units]."""
    time = tf.shape(projected)[0]
    found = [tf.TensorArray(projected.dtype, time) for _ in range(3)]

    def step(t: tf.Tensor, h: tf.Tensor, c: tf.Tensor, *found: tf.TensorArray) -> tuple[Any, ...]:
        i, f, g, o = tf.split(projected[t] + tf.matmul(h, recurrent), 4, axis=-1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        new_c = f * c + i * g
        new_h = o * tf.tanh(new_c)
        if keep is not None:
            new_c, new_h = tf.where(keep[t], new_c, c), tf.where(keep[t], new_h, h)
        written = zip(found, (tf.concat([i, f, g, o], axis=-1), new_h, new_c), strict=True)
        return t + 1, new_h, new_c, *(array.write(t, value) for array, value in written)

    results = tf.while_loop(lambda t, *_: t < time, step, (0, h, c, *found))
    return tuple(array.stack() for array in results[3:])


def _backward(
    d_outputs: tf.Tensor,
    d_h: tf.Tensor,
    d_c: tf.Tensor,
    gates: tf.Tensor,
    cs: tf.Tensor,
    before_c: tf.Tensor,
    recurrent: tf.Tensor,
    keep: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The gradients of what the gates saw [time, rows, 4 units], and of the first h and c."""
    time = tf.shape(gates)[0]

    def step(t: tf.Tensor, d_h: tf.Tensor, d_c: tf.Tensor, found: tf.TensorArray) -> tuple[Any, ...]:
        i, f, g, o = tf.split(gates[t], 4, axis=-1)
        d_h += d_outputs[t]
        bent = tf.tanh(cs[t])
        d_new = d_c + d_h * o * (1 - bent * bent)
        d_z = tf.concat(
            [
                d_new * g * i * (1 - i),
                d_new * before_c[t] * f * (1 - f),
                d_new * i * (1 - g * g),
                d_h * bent * o * (1 - o),
            ],
            axis=-1,
        )
        d_before = d_new * f
        if keep is not None:
            d_z = tf.where(keep[t], d_z, 0.0)
            d_before = tf.where(keep[t], d_before, d_c)
        d_h_before = tf.matmul(d_z, recurrent, transpose_b=True)
        if keep is not None:
            d_h_before = tf.where(keep[t], d_h_before, d_h)
        return t - 1, d_h_before, d_before, found.write(t, d_z)

    start = (time - 1, d_h, d_c, tf.TensorArray(gates.dtype, time))
    _, d_h, d_c, found = tf.while_loop(lambda t, *_: t >= 0, step, start)
    return found.stack(), d_h, d_c
