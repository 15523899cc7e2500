"""Sums over replicas by tf.distribute. Its strategies only sum tensors: no variable is created in their scope."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# Takes the tensors of each replica of this process, [replica][tensor]; returns the sums over the replicas of all
# processes, in the same form.
Exchange = Callable[[list[list[tf.Tensor]]], list[list[tf.Tensor]]]


def exchange_by(strategy: tf.distribute.Strategy, first_replica: int = 0) -> Exchange:
    """Return an all-reduce over the replicas of a strategy. first_replica: the lowest replica id of this process."""

    def exchange(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
        def sum_over_replicas() -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            replica = int(tf.get_static_value(context.replica_id_in_sync_group)) - first_replica
            # tf.distribute puts each sum on the device of its tensor.
            with tf.device(strategy.extended.worker_devices[replica]):
                placed = [tf.identity(tensor) for tensor in parts[replica]]
            return context.all_reduce(tf.distribute.ReduceOp.SUM, placed)

        per_tensor = map(strategy.experimental_local_results, strategy.run(sum_over_replicas))
        return [list(tensors) for tensors in zip(*per_tensor, strict=True)]

    return exchange


def of_first_replica(sums: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    """Return the sums of an exchange on the first replica, after those on all replicas.

    TensorFlow removes an all-reduce from a replica where nothing uses its result, and the other replicas would wait for
    it for ever. sums: [replica][tensor].
    """
    with tf.control_dependencies([tensor for of_replica in sums for tensor in of_replica]):
        return [tf.identity(tensor) for tensor in sums[0]]


def broadcast(exchange: Exchange, values: Iterable[Any], homes: Sequence[str], source: bool) -> Iterator[tf.Tensor]:
    """Yield each value of the process that is the source, on every process, one after another, equal to the bit.

    It is a sum whose other terms are zero. values: arrays, tensors or variables, of the same shapes on every process;
    the memory of one of them is taken on each replica. homes: the device of each replica of this process. Integers
    become float64, which holds them exactly.
    """

    def summed(own: tf.Tensor) -> tf.Tensor:
        parts = []
        for i, home in enumerate(homes):
            with tf.device(home):
                # x + -0.0 has the bits of x for every x; 0.0 would change the sign of -0.0.
                none = tf.fill(own.shape, tf.constant(-0.0, own.dtype))
                parts.append([tf.identity(own) if source and i == 0 else none])
        (total,) = of_first_replica(exchange(parts))
        return total

    graph, concrete_functions = tf.function(summed, autograph=False), {}
    for value in values:
        own = tf.convert_to_tensor(value)
        own = own if own.dtype.is_floating else tf.cast(own, tf.float64)
        key = (own.dtype, *own.shape)
        if key not in concrete_functions:  # a call of `graph` would warn of its tracing, once for each shape
            concrete_functions[key] = graph.get_concrete_function(own)
        yield concrete_functions[key](own)
