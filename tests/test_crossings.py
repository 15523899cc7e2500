"""Copies between host and GPU, counted in traced graphs; the training step has none that make the host wait."""

import json

import pytest
import tensorflow as tf

from benchmarks.crossings import BENCHMARK, UPDATES, CrossingsBenchmark, crossings_of, step_crossings
from chatbot.flags import replace
from tests.model.small_transformer import TRANSFORMER

SETTINGS = CrossingsBenchmark(rnn_size=8, embedding_size=4, vocabulary_size=300, batch_size=4, max_length=9).settings


def test_an_edge_from_device_to_host_is_counted_with_its_place() -> None:
    """The maximum of device data becomes a size, which the host needs."""

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("sizes"):
            size = tf.cast(tf.reduce_max(x), tf.int32)
            return tf.zeros([size]) + x[0]

    crossings = crossings_of(step.get_concrete_function(tf.TensorSpec([None])))
    assert crossings.device_to_host == {("Cast", "Pack", "sizes/zeros"): 1}
    assert "device to host      1  Cast -> Pack in sizes/zeros" in crossings.table()


def test_sizes_from_the_host_are_free() -> None:
    """int32 arguments are in the host's memory. Of the operations, one starts work on the GPU."""

    @tf.function(autograph=False)
    def step(size: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.zeros([size]), [-1, 1])

    crossings = crossings_of(step.get_concrete_function(tf.TensorSpec([], tf.int32)))
    assert not crossings.device_to_host
    assert crossings.launches == {"Fill": 1}
    assert not crossings.operations_on_cpu


def test_loops_functions_and_waiting_kernels_are_counted() -> None:
    """The condition of the loop depends on device data; the function is called twice; Where waits for its size."""

    @tf.function(autograph=False)
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.where(x > 0)

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        (looped,) = tf.while_loop(lambda y: tf.reduce_sum(y) < 9, lambda y: (y + 1,), (x,))
        return inner(looped), inner(x)

    crossings = crossings_of(step.get_concrete_function(tf.TensorSpec([4])))
    kinds = {(producer, consumer): number for (producer, consumer, _), number in crossings.device_to_host.items()}
    assert kinds == {("Less", "LoopCond"): 1, ("Where", "size of the result"): 2}
    assert crossings.operations["Where"] == 2


def test_a_tensor_is_copied_once_to_each_memory() -> None:
    """Two GPUs use a number and an argument of the first GPU several times; what nothing uses is not counted."""

    @tf.function(autograph=False)
    def step(x: tf.Tensor, size: tf.Tensor) -> list[tf.Tensor]:
        results, number = [], tf.cast(size, tf.int64)
        for gpu in ("/GPU:1", "/GPU:2"):
            with tf.device(gpu):
                tf.cast(size + 1, tf.float64)
                results.append((x * tf.cast(number, tf.float32) + x) * tf.cast(number + 1, tf.float32))
        return results

    crossings = crossings_of(step.get_concrete_function(tf.TensorSpec([4]), tf.TensorSpec([], tf.int32)))
    assert crossings.counts() == {
        "device_to_host": 0,
        "host_to_device": 1,  # the Cast, on the first GPU, reads an int32
        "device_to_device": 4,  # two tensors to each GPU
        "operations": crossings.operations.total(),
        "operations_on_cpu": 0,
        "launches": 13,
    }


@pytest.mark.parametrize(
    ("precision", "changes", "launches"),
    [
        ("float32", {}, 160),
        ("bfloat16", {}, 180),
        ("float16", {}, 270),
        ("float32", {"copy": True}, 250),
        ("float32", {"cell": "gru", "bidirectional": False}, 225),
        ("bfloat16", {"copy": True, **TRANSFORMER}, 970),
    ],
    ids=str,
)
def test_step_never_makes_the_host_wait(precision: str, changes: dict, launches: int) -> None:
    crossings = step_crossings(replace(SETTINGS, **changes), 300, 1, precision)
    assert not crossings.device_to_host, crossings.table()
    assert crossings.operations.total() <= (1900 if "architecture" in changes else 900)
    assert crossings.launches.total() <= launches
    assert not crossings.operations_on_cpu
    assert crossings.operations["CudnnRNNV3"] == crossings.operations["CudnnRNNBackpropV3"]
    assert (crossings.operations["CudnnRNNV3"] > 0) == ("architecture" not in changes)


def test_benchmark_prints_one_json_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.crossings.PRECISIONS", ("float32",))
    monkeypatch.setattr("benchmarks.crossings.UPDATES", UPDATES[:1])
    arguments = ["--rnn-size", "8", "--embedding-size", "4", "--vocabulary-size", "300", "--batch-size", "8"]
    assert BENCHMARK(arguments) == 0
    results = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert results["device_to_host"] == 0
    assert 0 < results["operations"] <= 1200
    assert [(row["towers"], row["device_to_host"]) for row in results["steps"]] == [(1, 0), (4, 0)]
    assert {"host_to_device", "operations_on_cpu", "launches"} <= results.keys()
