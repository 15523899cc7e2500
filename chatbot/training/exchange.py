"""Sums over replicas by tf.distribute, which is used for nothing else: no variable of ours lives in a strategy."""

from collections.abc import Callable

import tensorflow as tf

# From the tensors of each replica here to their sums over all replicas, again for each replica here.
Exchange = Callable[[list[list[tf.Tensor]]], list[list[tf.Tensor]]]


def exchange_by(strategy: tf.distribute.Strategy, first: int = 0) -> Exchange:
    """Sums over the replicas of a strategy. first: the number of the first replica of this process."""

    def exchange(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
        def summed() -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            here = int(tf.get_static_value(context.replica_id_in_sync_group)) - first
            # By the tensors' devices tf.distribute knows where sums are wanted.
            with tf.device(strategy.extended.worker_devices[here]):
                placed = [tf.identity(tensor) for tensor in parts[here]]
            return context.all_reduce(tf.distribute.ReduceOp.SUM, placed)

        results = strategy.run(summed)
        by_tensor = map(strategy.experimental_local_results, results)
        return [list(tensors) for tensors in zip(*by_tensor, strict=True)]  # [replica][tensor]

    return exchange
