"""Sums over towers and replicas, by tf.distribute's strategies, exchanged while the backward pass goes on."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from chatbot.model.operations import is_gpu, placed_on
from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.training.devices.towers import Tower
from chatbot.training.gradients import Sums, dense
from chatbot.training.replica import Replica

# Takes the tensors of each replica of this process, [replica][tensor]; returns the sums over the replicas of all
# processes, in the same form.
Exchange = Callable[[list[list[tf.Tensor]]], list[list[tf.Tensor]]]

# Gradients of one stage are exchanged between CPUs in groups of at least this size. A smaller one would pay the latency
# of an exchange more often; with a larger one, the first gradients would wait longer for the others. It is also about
# what GPUs exchange in the time that a group costs them in addition (`group_bytes`).
GROUP_BYTES = 4 << 20


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

    graph, concrete_functions = tf.function(summed, autograph=False), {}
    for value in values:
        own = tf.convert_to_tensor(value)
        own = own if own.dtype.is_floating else tf.cast(own, tf.float64)
        key = (own.dtype, *own.shape)
        if key not in concrete_functions:  # a call of `graph` would warn of its tracing, once for each shape
            concrete_functions[key] = graph.get_concrete_function(own)
        yield concrete_functions[key](own)


class Terms(NamedTuple):
    """What a replica adds to the sums over all replicas. The first three are sums of the fields of `Sums`."""

    projection: list[tf.Tensor]
    others: list[tf.Tensor]
    rows: tf.Tensor
    tokens: tf.Tensor  # scalar float32, the target tokens, NaN if the loss of a tower is not finite
    report: tf.Tensor  # of the whole process, on the first replica; zeros on the others


class Total(NamedTuple):
    """The sums over all replicas, on one of them."""

    gradients: list[tf.Tensor]  # dense, in the order of model.trainable_variables
    tokens: tf.Tensor
    report: tf.Tensor


class Summation:
    """Sums gradients over the towers of each replica of this process, then over the replicas of all processes."""

    def __init__(self, model: Seq2Seq, replicas: Sequence[tuple[Replica, Sequence[Tower]]], exchange: Exchange) -> None:
        self._replicas, self._exchange = list(replicas), exchange
        self._embedding = embedding_index(model)
        self._groups = exchange_groups(model, is_gpu(self._replicas[0][0].home))

    def __call__(self, sums: Sequence[Sums], report: tf.Tensor, used: tf.Tensor) -> list[Total]:
        """Return the total of each replica. sums, report: of the towers of this process. used: [used] int64,
        `ids_used`."""
        of_towers = iter(sums)
        terms = []
        for i, (replica, towers) in enumerate(self._replicas):
            of_replica = [next(of_towers) for _ in towers]
            terms.append(self._terms(replica, of_replica, report if i == 0 else tf.zeros_like(report)))
        exchanged = self._exchanged(terms)
        totals = []
        for (replica, _), of_all in zip(self._replicas, exchanged, strict=True):
            gradients, embedding = list(of_all.others), self._embedding
            with placed_on(replica.devices[embedding]):
                shape = replica.weights[embedding].shape
                gradients.insert(embedding, dense(of_all.projection, of_all.rows, used, shape))
            totals.append(Total(gradients, of_all.tokens, of_all.report))
        return totals

    def _terms(self, replica: Replica, of_towers: Sequence[Sums], report: tf.Tensor) -> Terms:
        """Add the sums of a replica's towers, each where the replica has the weight."""
        devices = list(replica.devices)
        with tf.device(devices.pop(self._embedding)):
            projection = [tf.add_n(terms) for terms in zip(*(s.projection for s in of_towers), strict=True)]
            rows = tf.add_n([s.rows for s in of_towers])
        others = []
        for device, *terms in zip(devices, *(s.others for s in of_towers), strict=True):
            with tf.device(device):
                others.append(tf.add_n(terms))
        with tf.device(replica.home):
            tokens = tf.add_n([counted_tokens(s) for s in of_towers])
            return Terms(projection, others, rows, tokens, tf.identity(report))

    def _exchanged(self, terms: list[Terms]) -> list[Terms]:
        """Return the sums over the replicas of all processes, on each replica of this one."""
        flat = [tf.nest.flatten(of_replica) for of_replica in terms]
        for group in self._groups:
            exchanged = self._exchange([[tensors[i] for i in group] for tensors in flat])
            for tensors, summed in zip(flat, exchanged, strict=True):
                for i, tensor in zip(group, summed, strict=True):
                    tensors[i] = tensor
        return [tf.nest.pack_sequence_as(of_replica, tensors) for of_replica, tensors in zip(terms, flat, strict=True)]


def counted_tokens(sums: Sums) -> tf.Tensor:
    """Return the target tokens of a tower, or NaN if its loss is not finite, by which all replicas skip the update."""
    return tf.where(tf.math.is_finite(sums.loss), sums.weight, float("nan"))


def exchange_groups(model: Seq2Seq, on_gpus: bool) -> list[list[int]]:
    """Return groups of indices into the flat `Terms`, each to be exchanged in one operation.

    A group depends on one stage of the backward pass only: the projection, then the decoder, its last layer first, then
    the encoder, and last the rows of the embedding.
    """
    others = [variable for variable in model.trainable_variables if variable is not model.embedding.embeddings]
    projection = [0] if model.projects_by_embedding else []
    first = len(projection)
    index = {id(variable): first + i for i, variable in enumerate(others)}
    rows, tokens, report = range(first + len(others), first + len(others) + 3)
    sizes = {index[id(variable)]: 4 * int(variable.value.shape.num_elements()) for variable in others}
    layers = [[index[id(v)] for v in reversed(part.trainable_variables)] for part in (model.decoder, model.encoder)]
    size = group_bytes(sum(sizes[i] for layer in layers for i in layer), on_gpus)
    own = [model.bias] if model.tied else [model.bias, model.projection]
    of_projection = [tokens, report, *projection, *(index[id(variable)] for variable in own)]
    return [of_projection, *(group for layer in layers for group in grouped(layer, sizes, size)), [rows]]


def group_bytes(total: int, on_gpus: bool) -> int:
    """Return the size of a group. total: bytes of all gradients that are divided into groups.

    Between GPUs, a group costs time beside its exchange, since NCCL calls the host back after it; but the last group is
    exchanged when the backward pass is over, so that a large one delays the update. If that time is the one of an
    exchange of GROUP_BYTES, n equal groups cost n * GROUP_BYTES + total / n, the least where total / n is the geometric
    mean of both.
    """
    return max(GROUP_BYTES, math.isqrt(total * GROUP_BYTES)) if on_gpus else GROUP_BYTES


def grouped(indices: Sequence[int], sizes: Mapping[int, int], size: int) -> list[list[int]]:
    """Divide indices into groups, in their order, each of at least a size, but for the last one."""
    groups: list[list[int]] = [[]]
    for index in indices:
        if sum(sizes[i] for i in groups[-1]) >= size:
            groups.append([])
        groups[-1].append(index)
    return groups
