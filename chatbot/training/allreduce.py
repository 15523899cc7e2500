"""All-reduce of gradients across devices and machines with tf.distribute."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from chatbot.model.operations import is_gpu
from chatbot.training.devices.towers import Tower
from chatbot.training.gradients import Sums, TowerSums, dense
from chatbot.training.replica import Replica

# The type of an all-reduce function. It takes the tensors of each replica in this process, [replica][tensor], and
# returns their sums over the replicas of all processes, in the same structure.
Exchange = Callable[[list[list[tf.Tensor]]], list[list[tf.Tensor]]]


def no_exchange(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
    """Return the tensors unchanged. Used for a single replica, and for replicas that train independently."""
    return parts


def make_exchange(strategy: tf.distribute.Strategy, first_replica: int = 0) -> Exchange:
    """Return an all-reduce function for the replicas of a tf.distribute strategy.

    Args:
        strategy: The strategy, which covers the replicas of all processes.
        first_replica: The lowest replica id of this process.
    """

    def exchange(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
        def sum_over_replicas() -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            replica = int(tf.get_static_value(context.replica_id_in_sync_group)) - first_replica
            # tf.distribute places each sum on the device of its input tensor.
            with tf.device(strategy.extended.worker_devices[replica]):
                placed = [tf.identity(tensor) for tensor in parts[replica]]
            return context.all_reduce(tf.distribute.ReduceOp.SUM, placed)

        per_tensor = map(strategy.experimental_local_results, strategy.run(sum_over_replicas))
        return [list(tensors) for tensors in zip(*per_tensor, strict=True)]

    return exchange


def take_first_replica(sums: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    """Return the first replica's sums, with control dependencies on the sums of all replicas.

    Without these dependencies, TensorFlow would prune the all-reduce operations of the other replicas, because their
    results are unused. The first replica would then wait for them forever.

    Args:
        sums: The result of an all-reduce, [replica][tensor].
    """
    with tf.control_dependencies([tensor for tensors in sums for tensor in tensors]):
        return [tf.identity(tensor) for tensor in sums[0]]


def broadcast(exchange: Exchange, values: Iterable[Any], homes: Sequence[str], source: bool) -> Iterator[tf.Tensor]:
    """Broadcast the values of one process to all processes, and yield bit-identical copies.

    The broadcast is an all-reduce to which all other replicas contribute zeros. Integers are converted to float64.

    Args:
        exchange: The all-reduce function.
        values: Arrays, tensors or variables, with the same shapes on every process.
        homes: The home device of each replica of this process.
        source: Whether this process is the one whose values are broadcast.
    """

    def sum_with_zeros(tensor: tf.Tensor) -> tf.Tensor:
        parts = []
        for i, home in enumerate(homes):
            with tf.device(home):
                # Adding -0.0 preserves the bits of every number; adding 0.0 would change the sign of -0.0.
                zeros = tf.fill(tensor.shape, tf.constant(-0.0, tensor.dtype))
                parts.append([tf.identity(tensor) if source and i == 0 else zeros])
        (total,) = take_first_replica(exchange(parts))
        return total

    graph = tf.function(sum_with_zeros, autograph=False)
    concrete_functions = {}
    for value in values:
        tensor = tf.convert_to_tensor(value)
        tensor = tensor if tensor.dtype.is_floating else tf.cast(tensor, tf.float64)
        key = (tensor.dtype, *tensor.shape)
        if key not in concrete_functions:  # Calling `graph` directly would log a retracing warning for each shape.
            concrete_functions[key] = graph.get_concrete_function(tensor)
        yield concrete_functions[key](tensor)


class Total(NamedTuple):
    """Gradients and counts summed over all replicas, as received by one of the replicas."""

    gradients: list[tf.Tensor]  # one per trained group; the embedding gradient is dense
    tokens: tf.Tensor  # number of target tokens, scalar float32; NaN if any loss is not finite
    report: tf.Tensor  # [3, towers of all machines], as in `TowerSums`


def sum_gradients(
    replicas: Sequence[tuple[Replica, Sequence[Tower]]], exchange: Exchange, towers: TowerSums
) -> list[Total]:
    """Sum gradients over the towers of each replica, then over the replicas of all processes.

    Each gradient is all-reduced as soon as the backward pass has computed it, so communication overlaps with
    computation. The token count and the report are concatenated into one vector. TensorFlow would otherwise prune the
    all-reduce of the report on replicas that do not use it.

    Args:
        replicas: The replicas of this process, each with its towers.
        exchange: The all-reduce function.
        towers: The gradients and counts from the towers of this process.

    Returns:
        The sums as received by each replica of this process.
    """
    sums = iter(towers.sums)
    terms = []  # [replica][tensor]
    for i, (replica, replica_towers) in enumerate(replicas):
        replica_sums = [next(sums) for _ in replica_towers]
        with tf.device(replica.home):
            tokens = tf.add_n([tokens_or_nan(s) for s in replica_sums])
            report = tf.identity(towers.report) if i == 0 else tf.zeros_like(towers.report)
            counts = tf.concat([tf.expand_dims(tokens, 0), tf.reshape(report, [-1])], 0)
        terms.append([counts, *_sum_over_towers(replica, replica_sums)])
    exchanged = [exchange([[tensor] for tensor in tensors]) for tensors in zip(*terms, strict=True)]
    totals = []
    for (replica, _), ids, replica_totals in zip(
        replicas, towers.lookup_ids, zip(*exchanged, strict=True), strict=True
    ):
        counts, *gradients, rows = (tensor for (tensor,) in replica_totals)
        with tf.device(replica.home):
            tokens, total_report = tf.split(counts, [1, -1])
            tokens = tf.squeeze(tokens, 0)
            total_report = tf.reshape(total_report, [3, -1])
        projection = [gradients.pop(0) for _ in towers.sums[0].projection]
        if replica.groups[-1].trained:
            shape = replica.groups[-1].shapes[0]
            with tf.device(replica.devices[-1]):
                gradients.append(dense(projection, rows, ids, shape, is_gpu(replica.devices[-1])))
        totals.append(Total(gradients, tokens, total_report))
    return totals


def _sum_over_towers(replica: Replica, sums: Sequence[Sums]) -> list[tf.Tensor]:
    """Sum the gradients of a replica's towers. Each sum is computed on the device of the corresponding weight."""
    *devices, embedding = [replica.devices[i] for i in sorted({*replica.trained, len(replica.groups) - 1})]
    placed = [
        *((embedding, terms) for terms in zip(*(s.projection for s in sums), strict=True)),
        *zip(devices, zip(*(s.groups for s in sums), strict=True), strict=True),
        (embedding, [s.rows for s in sums]),
    ]
    added = []
    for device, terms in placed:
        with tf.device(device):
            added.append(tf.add_n(list(terms)))
    return added


def tokens_or_nan(sums: Sums) -> tf.Tensor:
    """Return the tower's number of target tokens, or NaN if its loss is not finite.

    The NaN carries over to the sum over all towers, so all replicas skip the update.
    """
    return tf.where(tf.math.is_finite(sums.loss), sums.weight, float("nan"))
