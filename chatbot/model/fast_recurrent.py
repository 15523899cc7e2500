"""Recurrent layers that are faster than Keras's: an LSTM for CPUs that skips padding, and cuDNN layers for GPUs.

The LSTM multiplies the inputs and computes the gradients of the weights outside the loop, for all steps at once
(Appleyard et al., 2016). The forward loop pushes the gates of each step onto a tensor list, and the backward loop pops
them. Unlike a TensorArray, a tensor list does not copy its elements. docs/experiments.md has measurements.

The cuDNN layers get the sequence lengths from the host. Keras computes the lengths on the GPU, and the host must wait.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.model.operations import matmul, to_precision
from chatbot.model.sequences import Packing


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
    """Compute the same as keras.layers.LSTM, but for packed tokens.

    The gates are in Keras's order: input, forget, candidate, output.

    Args:
        inputs: The packed inputs, [tokens, features].
        h: The initial outputs, [rows, units].
        c: The initial cell states, [rows, units].
        kernel: The weights of the inputs, [features, 4 units].
        recurrent: The weights of the previous outputs, [units, 4 units].
        bias: The bias, [4 units].
        packing: The packing of the rows.
        precision: The precision of products; see `chatbot.model.operations`. The outputs and the final h are rounded to
            it, too, but keep the dtype of h.

    Returns:
        The outputs, [tokens, units], and the final h and c, [rows, units] each.
    """

    @tf.custom_gradient
    def run(*arguments: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
        inputs, h, c, kernel, recurrent, bias = arguments
        inputs, kernel, recurrent = (to_precision(x, precision) for x in (inputs, kernel, recurrent))
        projected = matmul(inputs, kernel, precision) + bias  # [tokens, 4 units]
        first_h = to_precision(tf.gather(h, packing.order), precision)
        first_c = tf.gather(c, packing.order)
        hs, cs, gates = _forward(projected, first_h, first_c, recurrent, packing, precision)
        rows = tf.shape(h)[0]
        outputs = tf.cast(hs[rows:], h.dtype)

        def gradient(d_outputs: tf.Tensor, d_h: tf.Tensor, d_c: tf.Tensor) -> tuple[tf.Tensor, ...]:
            d_h = tf.gather(d_h, packing.order)
            d_c = tf.gather(d_c, packing.order)
            d_z, d_h, d_c = _backward(d_outputs, d_h, d_c, cs, gates, recurrent, packing, precision)
            previous_h = tf.gather(hs, packing.previous)  # [tokens, units]
            ones = tf.ones([1, tf.shape(d_z)[0]], d_z.dtype)  # A product with ones is faster than tf.reduce_sum.
            return (
                matmul(d_z, kernel, precision, transpose_b=True),
                tf.gather(d_h, packing.inverse_order),
                tf.gather(d_c, packing.inverse_order),
                matmul(inputs, d_z, precision, transpose_a=True),
                matmul(previous_h, d_z, precision, transpose_a=True),
                matmul(ones, d_z, precision)[0],
            )

        return (
            outputs,
            tf.gather(outputs, packing.last),
            tf.gather(cs, tf.cast(rows, tf.int64) + packing.last),
        ), gradient

    return run(inputs, h, c, kernel, recurrent, bias)


def _push(tensors: tf.Tensor, *values: tf.Tensor) -> tf.Tensor:
    for value in values:
        tensors = tf.raw_ops.TensorListPushBack(input_handle=tensors, tensor=value)
    return tensors


def _pop(tensors: tf.Tensor, number: int, units: int, dtype: tf.DType) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Pop `number` tensors [rows, units], the last one first. Return the remaining list and the tensors."""
    values = []
    for _ in range(number):
        tensors, value = tf.raw_ops.TensorListPopBack(
            input_handle=tensors, element_shape=[-1, units], element_dtype=dtype
        )
        value.set_shape([None, units])
        values.append(value)
    return tensors, values


def _new_list(*values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return _push(tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=dtype), *values)


def _concat(tensors: tf.Tensor, units: int, dtype: tf.DType) -> tf.Tensor:
    no_dims = tf.zeros([0], tf.int64)
    x, _ = tf.raw_ops.TensorListConcatV2(
        input_handle=tensors, element_shape=[-1, units], leading_dims=no_dims, element_dtype=dtype
    )
    return tf.ensure_shape(x, [None, units])


def _slice_at(slices: tf.Tensor, t: tf.Tensor) -> list[tf.Tensor]:
    """Return the `begin` and `size` arguments of tf.slice at a step."""
    return tf.unstack(tf.gather(slices, t), num=2)


def _loop(condition: Any, step: Any, start: tuple[Any, ...], units: int) -> Any:
    """Run tf.while_loop with these variables: the step number, two tensors [rows at the step, units], tensor lists."""
    rows = tf.TensorShape([None, units])
    shapes = (tf.TensorShape([]), rows, rows, *(tf.TensorShape([]) for _ in start[3:]))
    return tf.while_loop(condition, step, start, shape_invariants=shapes)


def _forward(
    projected: tf.Tensor, h: tf.Tensor, c: tf.Tensor, recurrent: tf.Tensor, packing: Packing, precision: str
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Run the forward loop over the steps.

    Returns:
        h: The initial states, followed by the state at each token, rounded to the precision, [rows + tokens, units].
        c: The same for c, but without fillers.
        A tensor list of the activated gates and tanh(c) at each step.
    """
    units = recurrent.shape[0]
    time = tf.shape(packing.tokens_at)[0]
    dtype = projected.dtype

    def step(t: tf.Tensor, h: tf.Tensor, c: tf.Tensor, hs: tf.Tensor, cs: tf.Tensor, gates: tf.Tensor) -> Any:
        start, size = _slice_at(packing.tokens_at, t)
        h = tf.slice(h, [0, 0], size)
        c = tf.slice(c, [0, 0], size)
        z = matmul(h, recurrent, precision) + tf.slice(projected, start, size)  # [rows at the step, 4 units]
        i, f, g, o = tf.split(z, 4, axis=-1)
        i = tf.sigmoid(i)
        f = tf.sigmoid(f)
        g = tf.tanh(g)
        o = tf.sigmoid(o)
        c = f * c + i * g
        tanh_c = tf.tanh(c)
        h = to_precision(o * tanh_c, precision)
        return t + 1, h, c, _push(hs, h), _push(cs, c), _push(gates, i, f, g, o, tanh_c)

    start = (0, h, c, _new_list(h, dtype=h.dtype), _new_list(c, dtype=dtype), _new_list(dtype=dtype))
    _, _, _, hs, cs, gates = _loop(lambda t, *_: t < time, step, start, units)
    hs = _push(hs, tf.zeros([packing.fillers, units], h.dtype))
    return _concat(hs, units, h.dtype), _concat(cs, units, dtype), gates


def _backward(
    d_outputs: tf.Tensor,
    d_h: tf.Tensor,
    d_c: tf.Tensor,
    cs: tf.Tensor,
    gates: tf.Tensor,
    recurrent: tf.Tensor,
    packing: Packing,
    precision: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Run the backward loop over the steps. The rows are in the order of packing.order.

    Args:
        d_outputs: The gradient with respect to the outputs, [tokens, units].
        d_h: The gradient with respect to the final h, [rows, units].
        d_c: The gradient with respect to the final c, [rows, units].
        cs: The values of c, from `_forward`.
        gates: The list of gates, from `_forward`.
        recurrent: The recurrent weights, rounded to the precision, [units, 4 units].
        packing: The packing of the rows.
        precision: The precision of products.

    Returns:
        The gradients with respect to the gates before activation, rounded to the precision, [tokens, 4 units], and the
        gradients with respect to the initial h and c, [rows, units] each.
    """
    units = recurrent.shape[0]
    time = tf.shape(packing.tokens_at)[0]
    dtype = d_outputs.dtype
    # Transposing the matrix before the loop makes float32 products twice as fast. It does not help in bfloat16.
    if transposed := precision == "float32":
        recurrent = tf.transpose(recurrent)
    sigmoid_grad, tanh_grad = tf.raw_ops.SigmoidGrad, tf.raw_ops.TanhGrad  # one operation each instead of three

    def step(t: tf.Tensor, later_h: tf.Tensor, later_c: tf.Tensor, gates: tf.Tensor, d_zs: tf.Tensor) -> Any:
        ended_rows = _slice_at(packing.ended_at, t)
        gates, (tanh_c, o, g, f, i) = _pop(gates, 5, units, dtype)  # [rows at the step, units] each
        # Rows that end at this step start from the gradient of their final state.
        dh = tf.concat([later_h, tf.slice(d_h, *ended_rows)], 0) + tf.slice(d_outputs, *_slice_at(packing.tokens_at, t))
        dc = tf.concat([later_c, tf.slice(d_c, *ended_rows)], 0) + tanh_grad(y=tanh_c, dy=dh * o)
        by_gate = (
            sigmoid_grad(y=i, dy=dc * g),
            sigmoid_grad(y=f, dy=dc * tf.slice(cs, *_slice_at(packing.before, t))),
            tanh_grad(y=g, dy=dc * i),
            sigmoid_grad(y=o, dy=dh * tanh_c),
        )
        d_z = to_precision(tf.concat(by_gate, -1), precision)  # [rows at the step, 4 units]
        d_previous_h = matmul(d_z, recurrent, precision, transpose_b=not transposed)
        d_zs = tf.raw_ops.TensorListSetItem(input_handle=d_zs, index=t, item=d_z)
        return t - 1, d_previous_h, dc * f, gates, d_zs

    no_rows = tf.zeros([0, units], dtype)
    d_zs = tf.raw_ops.TensorListReserve(element_shape=-1, num_elements=time + 1, element_dtype=recurrent.dtype)
    fillers = tf.zeros([packing.fillers, 4 * units], recurrent.dtype)
    d_zs = tf.raw_ops.TensorListSetItem(input_handle=d_zs, index=time, item=fillers)
    start = (time - 1, no_rows, no_rows, gates, d_zs)
    _, d_h, d_c, _, d_zs = _loop(lambda t, *_: t >= 0, step, start, units)
    return _concat(d_zs, 4 * units, recurrent.dtype), d_h, d_c


# cuDNN computes in float16 or float32 (TF32 if available). TensorFlow 2.21 converts bfloat16 to float32 and back.
CUDNN_TYPES = {"float32": tf.float32, "bfloat16": tf.float32, "float16": tf.float16}


def cudnn_sequence(
    inputs: tf.Tensor,
    initial: list[tf.Tensor],
    kernel: tf.Tensor,
    recurrent: tf.Tensor,
    bias: tf.Tensor,
    lengths: tf.Tensor,
    precision: str = "float32",
) -> list[tf.Tensor]:
    """Compute the same as keras.layers.LSTM or GRU, with cuDNN.

    Args:
        inputs: The inputs, [rows, time, features].
        initial: The initial h and c of an LSTM, or h of a GRU, [rows, units] each.
        kernel: The weights of the inputs, with the gates in Keras's order, [features, gates * units].
        recurrent: The weights of the previous outputs, [units, gates * units].
        bias: The bias, [4 units] for an LSTM, [2, 3 units] for a GRU.
        lengths: The lengths of the sequences, at least 1, in host memory, [rows] int32.
        precision: The precision of products; see `chatbot.model.operations`.

    Returns:
        The outputs, which are 0 at padding, [rows, time, units], and the final states, [rows, units] each.
    """
    lstm = len(initial) == 2
    dtype = CUDNN_TYPES[precision]
    params = lstm_params(kernel, recurrent, bias) if lstm else gru_params(kernel, recurrent, bias)
    h = c = tf.expand_dims(tf.cast(initial[0], dtype), 1)  # [rows, 1, units]
    if initial[-1] is not initial[0]:  # Otherwise, both are the same zeros.
        c = tf.expand_dims(tf.cast(initial[-1], dtype), 1)
    outputs, h, c, _, _ = tf.raw_ops.CudnnRNNV3(
        input=tf.cast(inputs, dtype),
        input_h=h,
        input_c=c if lstm else tf.constant(0, dtype),
        params=tf.cast(params, dtype),
        sequence_lengths=lengths,
        rnn_mode="lstm" if lstm else "gru",
        time_major=False,
        is_training=True,
    )
    states = [tf.squeeze(state, 1) for state in ((h, c) if lstm else (h,))]
    return [tf.cast(x, inputs.dtype) for x in (outputs, *states)]


def lstm_params(kernel: tf.Tensor, recurrent: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Return the weights of an LSTM in cuDNN's layout, [parameters].

    The layout consists of the transposed matrices of each gate, in Keras's order, and two biases. Keras has only one
    bias, so the first one is 0.
    """
    no_bias = tf.constant(np.zeros(bias.shape, np.float32))
    return _flatten(_transpose(kernel), _transpose(recurrent), no_bias, bias)


def gru_params(kernel: tf.Tensor, recurrent: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Return the weights of a GRU in cuDNN's layout, [parameters].

    The order of the gates is z, r, h in Keras, and r, z, h in cuDNN.
    """

    def reorder(x: tf.Tensor) -> tf.Tensor:
        z, r, h = tf.split(x, 3, axis=-1)
        return tf.concat([r, z, h], -1)

    return _flatten(*(tf.transpose(reorder(x)) for x in (kernel, recurrent)), *tf.unstack(reorder(bias)))


def _transpose(matrix: tf.Tensor) -> tf.Tensor:
    """Transpose a matrix. In a graph, the transpose of a transpose is the original (see `training.replica.Group`)."""
    is_transpose = not tf.executing_eagerly() and matrix.op.type == "Transpose"
    return matrix.op.inputs[0] if is_transpose else tf.transpose(matrix)


@tf.custom_gradient
def _flatten(*tensors: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Concatenate matrices and vectors into one vector. The custom gradient needs fewer operations."""

    def gradient(d_vector: tf.Tensor) -> list[tf.Tensor]:
        parts = tf.split(d_vector, [x.shape.num_elements() for x in tensors])
        return [tf.reshape(part, x.shape) for part, x in zip(parts, tensors, strict=True)]

    return tf.concat([tf.reshape(x, [-1]) for x in tensors], 0), gradient
