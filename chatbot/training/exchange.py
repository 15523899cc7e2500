"""Sums over replicas by tf.distribute. Its strategies only sum tensors: no variable is created in their scope."""

from collections.abc import Callable

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
