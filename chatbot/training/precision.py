"""The precision of matrix products: requested, stored in the attempt, or chosen by a measurement on this device.

cuDNN's recurrent kernels of TensorFlow 2.21 know float32 and float16, not bfloat16. The choice on a GPU is therefore
between these two, where float32 products are TF32 from compute capability 8.0 on; on a CPU, between float32 and
bfloat16.
"""

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from chatbot.config.stored import stored_settings
from chatbot.config.training import Settings
from chatbot.corpus.encoding.cache import key_of
from chatbot.model.fast.projection import MOST_ELEMENTS
from chatbot.model.matmul import matmul
from chatbot.training.attempt import has_checkpoint, write_json
from chatbot.training.devices import cpu_name
from chatbot.training.streams import print_wrapped

AUTO = "auto"
# The other precision must be faster by this factor to make up for its rounding. Products are about half of a step, so
# that a smaller factor saves less than a tenth of a run's time.
LEAST_GAIN = 1.2
# The measurement ends after this many rounds, or after so many seconds and at least LEAST_ROUNDS. On two busy cores the
# ratio of a single round varies by a factor of two.
ROUNDS, LEAST_ROUNDS, SECONDS = 31, 7, 3.0
# The number of times that a round computes all products before it waits for the last one. On a GPU, to wait for each
# would measure how fast products are started.
REPEATS, REPEATS_ON_GPU = 1, 25
# The assumed number of target tokens per pair, for the size of the measured products.
TOKENS = 8
TF32_CAPABILITY = (8, 0)


def chosen_precision(settings: Settings, vocabulary_size: int, device: str, towers: int = 1) -> str:
    """Return "float32", "bfloat16" or "float16", and print it if it was measured.

    A resumed attempt keeps its precision, so that it continues bit for bit.

    device: the logical device that is measured. towers: of all machines; each computes its share of a batch.
    """
    if settings.learning.precision != AUTO:
        return settings.learning.precision
    before = (
        stored_settings(settings.run.directory / "config.json").learning.precision if has_checkpoint(settings) else AUTO
    )
    if before != AUTO:
        return before
    if settings.parallel.asynchronous:  # the workers' devices cannot be measured from here
        return "float32"
    other = "float16" if "GPU" in device else "bfloat16"
    gain = _stored_gain(other, products(settings, vocabulary_size, towers), settings.corpus.cache, device)
    float32 = "float32 (TF32)" if has_tf32(device) else "float32"
    faster = gain >= LEAST_GAIN
    print_wrapped(
        f"Precision: {other if faster else float32}; on this device, {other} products of this model's sizes take "
        f"{1 / gain:.0%} of the time of {float32} (--precision to choose)."
    )
    return other if faster else "float32"


def products(settings: Settings, vocabulary_size: int, towers: int) -> list[list[int]]:
    """Return the sizes [m, k, n] of the largest products of a tower."""
    model, learning = settings.model, settings.learning
    units = model.rnn_size // 2 if model.bidirectional else model.rnn_size
    tokens = -(-(learning.batch_tokens or learning.batch_size * TOKENS) // towers)  # of a tower's share, rounded up
    sizes = [(model.projection_width, model.sampled_softmax or vocabulary_size), (units, 4 * units)]
    return [[min(tokens, MOST_ELEMENTS // n), k, n] for k, n in sizes]


def has_tf32(device: str) -> bool:
    """Return whether float32 products on this logical device are TF32, whose factors have 10 bits of mantissa."""
    if "GPU" not in device or not tf.config.experimental.tensor_float_32_execution_enabled():
        return False
    return _gpu_details(device).get("compute_capability", (0, 0)) >= TF32_CAPABILITY


def _gpu_details(device: str) -> dict[str, Any]:
    """Return TensorFlow's details of the GPU of a logical device: device_name and compute_capability, if known."""
    gpus: list[Any] = tf.config.list_physical_devices("GPU")
    gpu = gpus[min(int(device.rpartition(":")[2]), len(gpus) - 1)]  # a split GPU has several logical devices
    return tf.config.experimental.get_device_details(gpu)


def _stored_gain(precision: str, sizes: list[list[int]], cache: str, device: str) -> float:
    """Return `measured_gain`, measured once for each machine, TensorFlow version, precision and sizes of the products.

    A measurement varies, and a run that is repeated keeps its precision. It is stored in the cache folder; without
    permission to write there, each run measures.
    """
    conditions = {
        "device": _gpu_details(device).get("device_name", "GPU") if "GPU" in device else cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "tensorflow": tf.__version__,
        "precision": precision,
        "tf32": has_tf32(device),
        "products": sizes,
    }
    path = Path(cache) / f"precision-{key_of(**conditions)}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # absent or damaged
        return float(json.loads(path.read_text(encoding="utf-8"))["gain"])
    gain = measured_gain(precision, sizes, device)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**conditions, "gain": gain})
    return gain


def measured_gain(precision: str, sizes: list[list[int]], device: str) -> float:
    """Measure the time of products in float32 over that in another precision, rounding included.

    Both alternate, and the result is the median of the ratios, so that other work on the machine affects both alike.
    sizes: [m, k, n] of each product.
    """
    repeats = REPEATS_ON_GPU if "GPU" in device else REPEATS
    with tf.device(device):
        factors = [(tf.ones([m, k]), tf.ones([k, n])) for m, k, n in sizes]
        float32, other = (_computation(name, factors, repeats) for name in ("float32", precision))
        for compute in (float32, other):
            compute()  # traced, and its kernels compiled
        ratios: list[float] = []
        started = time.perf_counter()
        while len(ratios) < LEAST_ROUNDS or (len(ratios) < ROUNDS and time.perf_counter() - started < SECONDS):
            ratios.append(_seconds(float32) / _seconds(other))
    return statistics.median(ratios)


def _computation(precision: str, factors: list[tuple[tf.Tensor, tf.Tensor]], repeats: int) -> Callable[[], Any]:
    """Return a function that computes all products `repeats` times and waits for the last ones."""

    @tf.function(autograph=False)
    def compute(factors: list[tuple[tf.Tensor, tf.Tensor]]) -> tf.Tensor:
        def once(number: tf.Tensor, _: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            return number + 1, [matmul(a, b, precision)[0, 0] for a, b in factors]

        # A loop, because TensorFlow would compute equal products once. Control dependencies do not prevent that.
        start = tf.constant(0), [tf.constant(0.0) for _ in factors]
        return tf.while_loop(lambda number, _: number < repeats, once, start, parallel_iterations=1)[1]

    return lambda: [element.numpy() for element in compute(factors)]


def _seconds(compute: Callable[[], Any]) -> float:
    started = time.perf_counter()
    compute()
    return time.perf_counter() - started
