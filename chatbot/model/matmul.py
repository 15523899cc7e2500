"""Matrix products at a chosen precision.

precision, in every function and layer of the model: "float32", "bfloat16" or "float16", the type that the factors of
matrix products are rounded to. Weights and states are float32.
"""

import tensorflow as tf

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def policy(precision: str) -> str:
    """Return the name of Keras's dtype policy at this precision."""
    return POLICIES[precision]


def matmul(
    a: tf.Tensor, b: tf.Tensor, precision: str, transpose_a: bool = False, transpose_b: bool = False
) -> tf.Tensor:
    """Return the product a b: float32 if the factors are rounded, else of the type of the factors (tests use float64).

    A factor of several products may be rounded beforehand by `rounded`.
    """
    if precision == "float32":
        return tf.matmul(a, b, transpose_a, transpose_b)
    product = tf.matmul(tf.cast(a, precision), tf.cast(b, precision), transpose_a, transpose_b)
    return tf.cast(product, tf.float32)


def rounded(x: tf.Tensor, precision: str) -> tf.Tensor:
    """Round x as `matmul` rounds its factors."""
    return x if precision == "float32" else tf.cast(x, precision)
