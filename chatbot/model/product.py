"""Matrix products at the chosen precision."""

import tensorflow as tf

# Keras's name for it: layers that round the factors of their products, and keep their weights in float32.
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def policy(precision: str) -> str:
    """The dtype policy of Keras layers at this precision."""
    return POLICIES[precision]


def product(a: tf.Tensor, b: tf.Tensor, dtype: str, transpose_a: bool = False, transpose_b: bool = False) -> tf.Tensor:
    """a b as float32 (or wider, as they were), of factors that are rounded to dtype; sums are float32.

    dtype: "float32" changes nothing. A factor used again and again may be given as that dtype already.
    """
    if dtype == "float32":
        return tf.matmul(a, b, transpose_a, transpose_b)
    found = tf.matmul(tf.cast(a, dtype), tf.cast(b, dtype), transpose_a, transpose_b)
    return tf.cast(found, tf.float32)


def rounded(x: tf.Tensor, dtype: str) -> tf.Tensor:
    """x as `product` rounds it: for a factor of many products."""
    return x if dtype == "float32" else tf.cast(x, dtype)
