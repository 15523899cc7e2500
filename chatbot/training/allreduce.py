"""Sums over towers and replicas, by tf.distribute's strategies, exchanged while the backward pass goes on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from chatbot.model.operations import is_gpu
from chatbot.training.devices.towers import Tower
from chatbot.training.gradients import Sums, dense
from chatbot.training.replica import Replica

# Takes the tensors of each replica of this process, [replica][tensor]; returns the sums over the replicas of all
# processes, in the same form.
Exchange = Callable[[list[list[tf.Tensor]]], list[list[tf.Tensor]]]


def no_exchange(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
    """Leave each replica its own tensors: the exchange of a single replica, or of independent ones."""
    return parts


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
    """Return the sums of an exchange on the first replica, after those on all replicas. sums: [replica][tensor].

    TensorFlow removes an all-reduce whose result is not used, and the other replicas would wait for it for ever.
    """
    with tf.control_dependencies([tensor for of_replica in sums for tensor in of_replica]):
        return [tf.identity(tensor) for tensor in sums[0]]


def broadcast(exchange: Exchange, values: Iterable[Any], homes: Sequence[str], source: bool) -> Iterator[tf.Tensor]:
    """Yield each value of the source process on every process, one after another, equal to the bit.

    It is a sum whose other terms are zero. values: arrays, tensors or variables, of the same shapes on every process.
    homes: the device of each replica of this process. Integers become float64, which holds them exactly.
    """

    def summed(own: tf.Tensor) -> tf.Tensor:
        parts = []
        for i, home in enumerate(homes):
            with tf.device(home):
                # x + -0.0 has the bits of x for every x; 0.0 would change the sign of -0.0.
                zeros = tf.fill(own.shape, tf.constant(-0.0, own.dtype))
                parts.append([tf.identity(own) if source and i == 0 else zeros])
        (total,) = of_first_replica(exchange(parts))
        return total

    graph = tf.function(summed, autograph=False)
    concrete_functions = {}
    for value in values:
        own = tf.convert_to_tensor(value)
        own = own if own.dtype.is_floating else tf.cast(own, tf.float64)
        key = (own.dtype, *own.shape)
        if key not in concrete_functions:  # a call of `graph` would warn of its tracing, once for each shape
            concrete_functions[key] = graph.get_concrete_function(own)
        yield concrete_functions[key](own)


class Total(NamedTuple):
    """The sums over all replicas, on one of them."""

    gradients: list[tf.Tensor]  # of each group that is trained; the embedding's is dense
    tokens: tf.Tensor  # scalar float32, the target tokens, NaN if the loss of a tower is not finite
    report: tf.Tensor  # [3, towers of all machines], as in `TowerSums`


class Summation:
    """Sums gradients over the towers of each replica of this process, then over the replicas of all processes.

    Sums are exchanged in the order of the backward pass, each as soon as it is there: the counts, the projection, the
    groups, which begin with those of the decoder and end with those of the encoder, and the rows of the embedding.
    The counts are one vector, of which every replica uses a part: TensorFlow removes an all-reduce whose result is not
    used, and the other replicas would wait for it for ever.
    """

    def __init__(self, replicas: Sequence[tuple[Replica, Sequence[Tower]]], exchange: Exchange) -> None:
        self._replicas = list(replicas)
        self._exchange = exchange

    def __call__(self, sums: Sequence[Sums], report: tf.Tensor, used: Sequence[tf.Tensor]) -> list[Total]:
        """Return the total of each replica. sums, report, used: as in `TowerSums`."""
        of_towers = iter(sums)
        terms = []  # [replica][tensor]
        for i, (replica, towers) in enumerate(self._replicas):
            own = [next(of_towers) for _ in towers]
            with tf.device(replica.home):
                tokens = tf.add_n([counted_tokens(s) for s in own])
                own_report = tf.identity(report) if i == 0 else tf.zeros_like(report)
                counts = tf.concat([[tokens], tf.reshape(own_report, [-1])], 0)
            terms.append([counts, *self._of_replica(replica, own)])
        exchanged = [self._exchange([[tensor] for tensor in tensors]) for tensors in zip(*terms, strict=True)]
        totals = []
        for (replica, _), ids, of_replica in zip(self._replicas, used, zip(*exchanged, strict=True), strict=True):
            (counts,), *projection_and_groups, (rows,) = of_replica
            with tf.device(replica.home):
                tokens, all_report = tf.split(counts, [1, -1])
                tokens = tf.squeeze(tokens, 0)
                all_report = tf.reshape(all_report, [3, -1])
            projection_and_groups = [gradient for (gradient,) in projection_and_groups]
            split = len(sums[0].projection)
            projection = projection_and_groups[:split]
            of_groups = projection_and_groups[split:]
            if replica.groups[-1].trained:
                shape = replica.groups[-1].shapes[0]
                with tf.device(replica.devices[-1]):
                    of_groups.append(dense(projection, rows, ids, shape, is_gpu(replica.devices[-1])))
            totals.append(Total(of_groups, tokens, all_report))
        return totals

    def _of_replica(self, replica: Replica, of_towers: Sequence[Sums]) -> list[tf.Tensor]:
        """Add the gradients of a replica's towers, each where the replica has the weights."""
        *devices, of_embedding = [replica.devices[i] for i in sorted({*replica.trained, len(replica.groups) - 1})]
        placed = [
            *((of_embedding, terms) for terms in zip(*(s.projection for s in of_towers), strict=True)),
            *zip(devices, zip(*(s.groups for s in of_towers), strict=True), strict=True),
            (of_embedding, [s.rows for s in of_towers]),
        ]
        added = []
        for device, terms in placed:
            with tf.device(device):
                added.append(tf.add_n(list(terms)))
        return added


def counted_tokens(sums: Sums) -> tf.Tensor:
    """Return the target tokens of a tower, or NaN if its loss is not finite, by which all replicas skip the update."""
    return tf.where(tf.math.is_finite(sums.loss), sums.weight, float("nan"))
