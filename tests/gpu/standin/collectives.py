"""Collectives between stand-in GPUs: `python -m tests.gpu.standin.collectives NAME` calls a function and prints lines.

Each line is a name and whether it holds. A test reads them while this process runs.
"""

import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.ops import nccl_ops

from chatbot.training.allreduce import broadcast, exchange_by

Arrays = list[npt.NDArray[Any]]
TYPES = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
SIZES = (0, 1, 7, 1000, 100_003)
HINTS = ("nccl", "auto", "ring")
instance_keys = itertools.count(100)


def report(name: str, holds: bool) -> None:
    """Print a finding at once."""
    print(json.dumps([name, bool(holds)]), flush=True)


def random_arrays(count: int, size: int, dtype: tf.DType = tf.float32) -> Arrays:
    """Return arrays of whose sums the order of the terms shows, except of integers."""
    rng = np.random.default_rng(size)
    return [(9 * rng.standard_normal(size)).astype(dtype.as_numpy_dtype) for _ in range(count)]


def in_order(function: Callable[[Any, Any], Any], arrays: Iterable[Any]) -> Any:
    """Return function(function(first, second), third), and so on."""
    first, *others = arrays
    for other in others:
        first = function(first, other)
    return first


def equal_bits(actual: Iterable[Any], expected: Iterable[Any]) -> bool:
    """Return whether arrays are equal, and no NaN."""
    return all(
        np.asarray(a).dtype == np.asarray(b).dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(actual, expected, strict=True)
    )


def on_gpus(make: Callable[[int, tf.Tensor], Any], tensors: Iterable[tf.Tensor]) -> list[Any]:
    """Return what a function makes of each tensor, on the GPU of its index."""
    made = []
    for i, tensor in enumerate(tensors):
        with tf.device(f"/GPU:{i}"):
            made.append(make(i, tensor))
    return made


def summed_by(reduce: Callable[[list[tf.Tensor]], list[tf.Tensor]], gpus: int, dtype: tf.DType) -> Any:
    """Return a graph that reduces, over GPUs, a tensor of each that a kernel has computed just before."""

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return reduce(on_gpus(lambda _, tensor: tensor + tf.zeros_like(tensor), tensors))

    return tf.function(call, input_signature=[tf.TensorSpec([None], dtype)] * gpus, autograph=False)


def sums() -> None:
    """Sum over 2 and 4 GPUs, for each type and size."""
    for gpus, dtype in itertools.product((2, 4), TYPES):
        graph = summed_by(nccl_ops.all_sum, gpus, dtype)
        for size in SIZES:
            arrays = random_arrays(gpus, size, dtype)
            total = in_order(np.add, arrays)
            report(f"sum of {size} {dtype.name} over {gpus}", equal_bits(graph(*arrays), [total] * gpus))
    arrays = random_arrays(4, 1000)
    for reduce, expected in (
        (nccl_ops.all_prod, np.multiply),
        (nccl_ops.all_min, np.minimum),
        (nccl_ops.all_max, np.maximum),
    ):
        result = summed_by(reduce, 4, tf.float32)(*arrays)
        report(reduce.__name__, equal_bits(result, [in_order(expected, arrays)] * 4))


def rewritten() -> None:
    """Reduce to one GPU, and broadcast from one, by operations that TensorFlow replaces in the graph."""
    arrays = random_arrays(4, 1000)

    def reduced(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        with tf.device("/GPU:2"):
            return [nccl_ops.reduce_sum(tensors)]

    report("reduce", equal_bits(summed_by(reduced, 4, tf.float32)(*arrays), [in_order(np.add, arrays)]))

    @tf.function(autograph=False)
    def sent(array: tf.Tensor) -> list[Any]:
        with tf.device("/GPU:1"):
            source = nccl_ops.broadcast(tf.reshape(array * 2, [1000]))
        return on_gpus(lambda i, tensor: tensor * float(i), [source] * 4)

    report("broadcast", equal_bits(sent(arrays[0]), [np.float32(i) * (2 * arrays[0]) for i in range(4)]))


def many() -> None:
    """Run many sums at once, which do not depend on each other: in one graph, and in graphs of several threads."""
    arrays = [random_arrays(4, size) for size in range(1, 61)]

    @tf.function(autograph=False)
    def graph(rows: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
        return [nccl_ops.all_sum(on_gpus(lambda _, tensor: tensor * 2, row)) for row in rows]

    expected = [[in_order(np.add, row) * 2] * 4 for row in arrays]

    def right(_: int) -> bool:
        return all(map(equal_bits, graph(arrays), expected))

    report("60 sums of a graph", right(0))
    graphs = [summed_by(nccl_ops.all_sum, gpus, tf.float32) for gpus in (4, 4, 2)]

    def other_graph(i: int) -> bool:
        row = random_arrays(4, 1000 + i)[: len(graphs[i % 3].input_signature)]
        return equal_bits(graphs[i % 3](*row), [in_order(np.add, row)] * len(row))

    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(right, range(8)), *threads.map(other_graph, range(60))]
    report("graphs of four threads", all(found))


def distributed(hint: str, tokens: list[tf.Variable]) -> None:
    """Run the operations of tf.distribute. hint: nccl, or for TensorFlow's ring auto or ring."""
    arrays = [array.reshape(8, 3) for array in random_arrays(4, 24)]
    ops, total = tf.raw_ops, in_order(np.add, arrays)

    def run(make: Callable[..., tf.Tensor], inputs: Iterable[Any] = arrays, ordered: bool = True) -> Any:
        same = {"group_size": 4, "group_key": 1000, "instance_key": next(instance_keys), "communication_hint": hint}

        def operation(i: int, tensor: tf.Tensor) -> tf.Tensor:
            token = {"ordering_token": [tokens[i].handle]} if ordered else {}
            return make(i, input=tensor * 1, **same, **token)

        return tf.function(lambda: on_gpus(operation, map(tf.constant, inputs)), autograph=False)()

    def close(actual: Iterable[Any], expected: Any) -> bool:
        """Whether the results are equal to the bit on all devices, and for NCCL also to the expected one."""
        results = [tensor.numpy() for tensor in actual]
        exact = equal_bits(results, [expected if hint == "nccl" else results[0]] * 4)
        return exact and np.allclose(results[0], expected, atol=1e-5)

    for merge, last, expected in (
        ("Add", "Id", total),
        ("Add", "Div", total / 4),
        ("Mul", "Id", in_order(np.multiply, arrays)),
        ("Min", "Id", np.min(arrays, 0)),
        ("Max", "Id", np.max(arrays, 0)),
    ):
        result = run(lambda _, m=merge, f=last, **rest: ops.CollectiveReduceV2(merge_op=m, final_op=f, **rest))
        report(f"{hint} {merge} {last}", close(result, expected))
    gathered = run(lambda _, **rest: ops.CollectiveGatherV2(**rest))
    report(f"{hint} gather", equal_bits(gathered, [np.concatenate(arrays)] * 4))

    def one_to_all(i: int, input: tf.Tensor, **rest: Any) -> tf.Tensor:
        if i == 2:
            return ops.CollectiveBcastSendV2(input=input, **rest)
        return ops.CollectiveBcastRecvV2(T=tf.float32, shape=[8, 3], **rest)

    report(f"{hint} broadcast", equal_bits(run(one_to_all, ordered=False), [arrays[2]] * 4))
    if hint == "nccl":  # TensorFlow has no ring for it
        scattered = run(lambda _, **rest: ops.CollectiveReduceScatterV2(merge_op="Add", final_op="Id", **rest))
        report("nccl scatter", equal_bits(scattered, np.split(total, 4)))


def strategies() -> None:
    """Run the all-reduces of this project and of tf.distribute itself."""
    arrays = [[array, array[:3]] for array in random_arrays(4, 1000)]
    devices = [f"/GPU:{i}" for i in range(4)]
    for all_reduce in (tf.distribute.NcclAllReduce(), None):
        strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=all_reduce)
        result = tf.function(exchange_by(strategy), autograph=False)([[*map(tf.constant, row)] for row in arrays])
        expected = [in_order(np.add, column) for column in zip(*arrays, strict=True)]
        report(f"exchange by {all_reduce}", all(equal_bits(row, expected) for row in result))


def errors() -> None:
    """Sum tensors of different sizes, which NCCL cannot."""
    try:
        summed_by(nccl_ops.all_sum, 2, tf.float32)([1.0], [1.0, 2.0])
    except tf.errors.InvalidArgumentError as error:
        report("different shapes", "a collective of different shapes or types" in str(error))


def two_sums(first: str, second: str) -> None:
    """Run two sums over two GPUs, one after another on each. first, second: the order of "ab" on each GPU."""

    @tf.function(autograph=False)
    def graph() -> list[Any]:
        def one_after_another(i: int, tensor: tf.Tensor) -> tf.Tensor:
            for name in (first, second)[i]:
                # The sum takes the result of the one before, so that it is asked for when that one has ended.
                summed = tf.raw_ops.NcclAllReduce(
                    input=tensor, reduction="sum", num_devices=2, shared_name=f"{first}{second}{name}"
                )
                tensor = tensor + 0.0 * summed
            return tensor

        return on_gpus(one_after_another, [tf.ones([3])] * 2)

    report(f"order {first} and {second}", all((tensor.numpy() == 1).all() for tensor in graph()))


def one_process() -> None:
    """Print all findings of one process, and then hang."""
    for find in (sums, rewritten, many, strategies, errors):
        find()
    tokens = on_gpus(lambda *_: tf.Variable(0.0), range(4))
    for hint in HINTS:
        distributed(hint, tokens)
    two_sums("ab", "ab")
    threading.Thread(target=two_sums, args=("ab", "ba")).start()
    report("began", True)


def one_of_two_processes(index: str) -> None:
    """Sum over two GPUs of each of two processes, whose addresses come when both have started."""
    report("started", True)
    addresses = sys.stdin.readline().split()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": addresses}),
        task_type="worker",
        task_id=int(index),
        rpc_layer="grpc",
        num_accelerators={"GPU": 2},
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    report("replicas", strategy.num_replicas_in_sync == 4)
    exchange, own = exchange_by(strategy, 2 * int(index)), slice(2 * int(index), 2 * int(index) + 2)
    graph = tf.function(exchange, autograph=False, reduce_retracing=True)
    for size in (1, 1000, 1_000_003):
        arrays = random_arrays(4, size)
        result = graph([[tf.constant(array), tf.constant(array[:3])] for array in arrays[own]])
        close = np.allclose(result[0][0], in_order(np.add, arrays), atol=1e-4)
        report(f"sum of {size}", close and all(equal_bits(row, result[0]) for row in result))
    values = [np.arange(7.0), np.full(3, -0.0, np.float32)]
    source = index == "0"
    received = broadcast(exchange, values if source else map(np.zeros_like, values), ["/GPU:0", "/GPU:1"], source)
    report("broadcast", equal_bits(received, values))
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.NCCL
    )

    @tf.function(autograph=False)
    def with_nccl() -> Any:
        def summed() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.all_reduce("sum", tf.cast(context.replica_id_in_sync_group, tf.float32), options=options)

        return strategy.experimental_local_results(strategy.run(summed))

    report("hint nccl", [tensor.numpy() for tensor in with_nccl()] == [6, 6])


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
