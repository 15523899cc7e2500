"""LSTM and GRU over a batch by cuDNN's fused kernels, for GPUs.

keras.layers.LSTM and GRU use the same kernels, but compute the lengths from a mask on the GPU, which the host then
waits for, and assert that the mask is right-padded, which it waits for as well. Here the lengths come from the host.
This code has never run on a GPU. A test compares the arguments of cuDNN with those that Keras gives it.
"""

import tensorflow as tf

# cuDNN has float32 (TF32 where the GPU has it) and float16. TensorFlow 2.21 converts bfloat16 to float32 and back.
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
    """Compute keras.layers.LSTM or GRU. Return outputs [rows, time, units] and the last states [rows, units].

    inputs [rows, time, features]; initial: h and c of an LSTM, h of a GRU, [rows, units] each. kernel
    [features, gates * units], recurrent [units, gates * units] and bias, [4 units] or [2, 3 units], in Keras's order of
    gates. lengths [rows] int32, at least 1, in the host's memory. Outputs beyond a row's length are 0.
    """
    lstm = len(initial) == 2
    dtype = CUDNN_TYPES[precision]
    params = lstm_params(kernel, recurrent, bias) if lstm else gru_params(kernel, recurrent, bias)
    h, *c = (tf.expand_dims(tf.cast(state, dtype), 1) for state in initial)  # [rows, 1, units] each
    outputs, h, c, _, _ = tf.raw_ops.CudnnRNNV3(
        input=tf.cast(inputs, dtype),
        input_h=h,
        input_c=c[0] if lstm else tf.constant(0, dtype),
        params=tf.cast(params, dtype),
        sequence_lengths=lengths,
        rnn_mode="lstm" if lstm else "gru",
        time_major=False,
        is_training=True,
    )
    states = [tf.squeeze(state, 1) for state in ((h, c) if lstm else (h,))]
    return [tf.cast(x, inputs.dtype) for x in (outputs, *states)]


def lstm_params(kernel: tf.Tensor, recurrent: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Return an LSTM's weights in cuDNN's layout, [parameters]: matrices transposed, gate by gate, then two biases.

    The gates are in Keras's order. cuDNN has a second bias, which is 0.
    """
    matrices = [tf.reshape(tf.transpose(matrix), [-1]) for matrix in (kernel, recurrent)]
    return tf.concat([*matrices, tf.zeros_like(bias), bias], 0)


def gru_params(kernel: tf.Tensor, recurrent: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Return a GRU's weights in cuDNN's layout, [parameters]. Keras's gates are z, r, h, and cuDNN's r, z, h."""

    def reordered(x: tf.Tensor) -> tf.Tensor:
        """[..., 3 units] -> the same shape."""
        z, r, h = tf.split(x, 3, axis=-1)
        return tf.concat([r, z, h], -1)

    matrices = [tf.reshape(tf.transpose(reordered(matrix)), [-1]) for matrix in (kernel, recurrent)]
    return tf.concat([*matrices, tf.reshape(reordered(bias), [-1])], 0)
