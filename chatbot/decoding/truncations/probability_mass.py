"""The first ids of an order whose probabilities reach a sum, found without sorting the vocabulary."""

import tensorflow as tf

# The interval of the limit is halved this many times.
HALVINGS = 12


def first_to_reach(order: tf.Tensor, probabilities: tf.Tensor, mass: float) -> tf.Tensor:
    """Return which ids are the fewest, from the largest `order` on, whose probabilities sum to at least `mass`.

    The result is [rows, vocabulary] bool. The limit of the order is found by bisection, which takes together ids whose
    orders differ by less than 1 / 4,096 of the widest possible difference. Sorting would take ten times as long.

    order: [rows, vocabulary] float32, in nats, -inf where an id is not allowed. probabilities: [rows, vocabulary].
    mass: above 0, below 1.
    """
    # If only ids of probability below (1 - mass) / vocabulary were left out, too little would be left out.
    least = (1 - mass) / tf.cast(tf.shape(order)[-1], tf.float32)
    allowed = tf.where(probabilities >= least, order, float("inf"))
    low, high = (
        tf.reduce_min(allowed, axis=-1, keepdims=True),
        tf.reduce_max(order, axis=-1, keepdims=True),
    )  # [rows, 1]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        sums = tf.reduce_sum(tf.where(order >= middle, probabilities, 0.0), axis=-1, keepdims=True)
        reached = sums >= mass
        low, high = tf.where(reached, middle, low), tf.where(reached, high, middle)
    return order >= low
