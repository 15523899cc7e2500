"""The precision of matrix products: requested, stored in the attempt, or chosen for this device.

GPUs compute in float32 (TF32 from compute capability 8.0 on). On a CPU with instructions for bfloat16, a measurement
decides: small products are faster in float32.
"""

import contextlib
import json
import re
import statistics
import time
from pathlib import Path

import tensorflow as tf

from chatbot.config.attempts import CONFIG
from chatbot.config.corpus import AUTO
from chatbot.config.model import TRANSFORMER
from chatbot.config.stored import stored_settings
from chatbot.config.training import Settings
from chatbot.corpus.cache import key_of
from chatbot.corpus.workers import cores
from chatbot.durable import write_json
from chatbot.model.loss import MOST_ELEMENTS
from chatbot.model.operations import matmul
from chatbot.training.attempt import has_checkpoint
from chatbot.training.devices.towers import cpu_name

# bfloat16 must be faster by this factor to make up for its rounding. Products are about half of a step, so that a
# smaller factor saves less than a tenth of a run's time.
LEAST_GAIN = 1.2
# The measurement ends after this many rounds, or after so many seconds and at least LEAST_ROUNDS. On two busy cores the
# ratio of a single round varies by a factor of two.
ROUNDS, LEAST_ROUNDS, SECONDS = 31, 7, 3.0
# The assumed number of target tokens per pair, for the size of the measured products.
TOKENS = 8
CPU_INFO = Path("/proc/cpuinfo")


def chosen_precision(settings: Settings, vocabulary_size: int, device: str, towers: int = 1) -> str:
    """Return and print the precision. device: the logical one that is measured. towers: of all machines."""
    if settings.learning.precision != AUTO:
        return settings.learning.precision
    if has_checkpoint(settings):
        before = stored_settings(settings.run.directory / CONFIG).learning.precision
        if before != AUTO:
            return before
    # The workers of an asynchronous run cannot be measured from here.
    if "GPU" in device or settings.parallel.asynchronous or not may_compute_bfloat16():
        return "float32"
    gain = _stored_gain(products(settings, vocabulary_size, towers), settings.corpus.cache, device)
    chosen = "bfloat16" if gain >= LEAST_GAIN else "float32"
    print(
        f"Precision: {chosen}; on this device, bfloat16 products of this model's sizes take {1 / gain:.0%} of the time "
        "of float32 (--precision to choose)."
    )
    return chosen


def may_compute_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16, or does not tell: only Linux lists them."""
    with contextlib.suppress(OSError):
        features = re.search(r"^(?:flags|Features)\s*:(.*)$", CPU_INFO.read_text(encoding="utf-8"), re.MULTILINE)
        return features is None or "bf16" in features[1]
    return True


def products(settings: Settings, vocabulary_size: int, towers: int) -> list[list[int]]:
    """Return the sizes [m, k, n] of the largest products of a tower."""
    model, learning = settings.model, settings.learning
    units = model.units // 2 if model.bidirectional and model.architecture != TRANSFORMER else model.units
    tokens = -(-(learning.batch_tokens or learning.batch_size * TOKENS) // towers)  # of a tower's share, rounded up
    sizes = [(model.embedding_size, model.sampled_softmax or vocabulary_size), (units, 4 * units)]
    return [[min(tokens, MOST_ELEMENTS // n), k, n] for k, n in sizes]


def _stored_gain(sizes: list[list[int]], cache: str, device: str) -> float:
    """Return `measured_gain`, once for each machine, TensorFlow version and sizes, so that a repeated run keeps it."""
    conditions = {
        "device": cpu_name(),
        "cores": cores(),
        "tensorflow": tf.__version__,
        "products": sizes,
    }
    path = Path(cache) / f"precision-{key_of(**conditions)}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # absent or damaged
        return float(json.loads(path.read_text(encoding="utf-8"))["gain"])
    gain = measured_gain(sizes, device)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**conditions, "gain": gain})
    return gain


def measured_gain(sizes: list[list[int]], device: str) -> float:
    """Return the median ratio of times of products in float32 and in bfloat16. sizes: [m, k, n] of each."""
    with tf.device(device):
        factors = [(tf.ones([m, k]), tf.ones([k, n])) for m, k, n in sizes]

        def seconds(precision: str) -> float:
            started = time.perf_counter()
            for element in _multiplied(factors, precision):
                element.numpy()
            return time.perf_counter() - started

        for precision in ("float32", "bfloat16"):
            seconds(precision)  # traced, and its kernels compiled
        ratios: list[float] = []
        started = time.perf_counter()
        while len(ratios) < LEAST_ROUNDS or (len(ratios) < ROUNDS and time.perf_counter() - started < SECONDS):
            ratios.append(seconds("float32") / seconds("bfloat16"))
    return statistics.median(ratios)


@tf.function(autograph=False)
def _multiplied(factors: list[tuple[tf.Tensor, tf.Tensor]], precision: str) -> list[tf.Tensor]:
    """Compute all products, and return an element of each."""
    return [matmul(a, b, precision)[0, 0] for a, b in factors]
